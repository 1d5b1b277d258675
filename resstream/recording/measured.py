"""Which writes measure themselves?

The fused write of a native model has both the stream and the write in hand, and returns their
statistics (`resstream.kernels.reference.STATISTICS`) with no further pass over memory.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from torch import Tensor

from resstream.nn.fusion import may_fuse
from resstream.nn.scales import AdapterCarry
from resstream.nn.writing import WritingBlock
from resstream.stream.model import StreamModel


def measuring_blocks(model: StreamModel) -> dict[int, WritingBlock]:
    """Layer -> block, for native blocks whose writes are fused on this device.

    Each write must be added to the stream that its site says: not so in parallel blocks, and where
    something stands in for the stream on the skip path.
    """
    like = next(model.module.parameters())
    found: dict[int, WritingBlock] = {}
    for spec in model.spec.blocks:
        block = model.module.get_submodule(spec.module)
        if isinstance(block, WritingBlock) and may_fuse(like, block.fusion):
            is_carried = not any(isinstance(scale, AdapterCarry) for scale in block.scales.values())
            if is_carried and not spec.parallel and not spec.opaque:
                found[spec.layer] = block
    return found


@contextmanager
def measured(
    blocks: Mapping[int, WritingBlock], take: Callable[[int, str, Tensor], None]
) -> Iterator[None]:
    """Call `take` with layer, write and statistics of each write that measures itself."""

    def taking(layer: int) -> Callable[[str, Tensor], None]:
        return lambda name, statistics: take(layer, name, statistics)

    with ExitStack() as stack:
        for layer, block in blocks.items():
            block.on_statistics = taking(layer)
            stack.callback(setattr, block, "on_statistics", None)
        yield
