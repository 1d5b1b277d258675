"""The model's own forward with its blocks taken out: embedding, context and exact readout.

Replacing every block by a stub that hands its input on lets the model itself say what each block is
called with (position embeddings, masks, caches), and lets it turn any stream into logits, with
whatever norm, scale, bias or soft-cap it has.  Nothing about a family has to be known for that.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from resstream.errors import DiscoveryError
from resstream.stream.calls import BlockCall, find_call, replace_first, without_caches


class _BlocksReachedError(Exception):
    """Raised by the last stub when only the calls are wanted; never leaves this module."""


class Skeleton:
    """The forward of `module` around its `blocks`.

    Args:
        module: The whole model.
        blocks: Its blocks in order.
        templates: What each block returned in the probe, to return the like of it.
        forward: Calls the model on inputs and gives its output tensor.
    """

    def __init__(
        self,
        module: nn.Module,
        blocks: Sequence[nn.Module],
        templates: Sequence[Any],
        forward: Callable[[Any], Tensor],
    ) -> None:
        self._module = module
        self._blocks = tuple(blocks)
        self._templates = tuple(templates)
        self._forward = forward
        self.active = False
        """True while a stubbed forward runs; hooks on blocks stay silent then."""

    def calls(self, inputs: Any) -> tuple[BlockCall, ...]:
        """How each block is called on `inputs`; the first call's stream is the embedding."""
        found: list[BlockCall] = []

        def stub(layer: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            call = find_call(args, kwargs)
            if call is None:
                raise DiscoveryError(
                    f"block {layer} was called without a stream [batch, pos, width]"
                )
            found.append(without_caches(call))
            if layer == len(self._blocks) - 1:
                raise _BlocksReachedError
            return replace_first(self._templates[layer], call.stream)

        with self._stubbed(stub):
            try:
                self._forward(inputs)
            except _BlocksReachedError:
                return tuple(found)
        raise DiscoveryError(f"only {len(found)} of {len(self._blocks)} blocks were called")

    def readout(self, inputs: Any, stream: Tensor) -> Tensor:
        """What the model makes of `stream` after its last block; `inputs` give only the shape."""

        def stub(layer: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            del args, kwargs
            return replace_first(self._templates[layer], stream)

        with self._stubbed(stub):
            return self._forward(inputs)

    @contextmanager
    def _stubbed(
        self, stub: Callable[[int, tuple[Any, ...], dict[str, Any]], Any]
    ) -> Iterator[None]:
        def forward_of(layer: int) -> Callable[..., Any]:
            return lambda *args, **kwargs: stub(layer, args, kwargs)

        before = [vars(block).get("forward") for block in self._blocks]
        self.active = True
        try:
            for layer, block in enumerate(self._blocks):
                vars(block)["forward"] = forward_of(layer)
            yield
        finally:
            for block, forward in zip(self._blocks, before, strict=True):
                if forward is None:
                    vars(block).pop("forward", None)
                else:
                    vars(block)["forward"] = forward
            self.active = False
