"""Behind the last block only the last position is read: its MLP need not see the other rows.

The products of a block's attention are cut to those rows where attention is (`LooseAttention`);
this cuts the input of a whole module, and so its activations and norms too.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jaxtyping import Int
from torch import Tensor, nn

from resstream.stream.calls import first_tensor, replace_first
from resstream.stream.spec import BlockSpec
from resstream.sweep.patches import is_last_word


def row_module(block: BlockSpec) -> str | None:
    """Path of the module that may run on chosen rows of the block alone; None if there is none.

    It is that of an MLP that nothing else of the block depends on and that reads only what it is
    handed.  That it treats each row by itself is what the prefix proof shows.
    """
    write = block.writes[-1]
    free = is_last_word(block, write.site) and write.minus is None
    return (write.branch or write.module) if write.name == "mlp" and free else None


@contextmanager
def only_rows(module: nn.Module, rows: Int[Tensor, " wanted"], n_rows: int) -> Iterator[None]:
    """While open, `module` runs on chosen rows of its input; those of others in its output are 0.

    A call with anything else than one tensor ``[1, n_rows, width]`` is left alone.

    Args:
        module: Treats each row by itself.
        rows: Which are wanted.
        n_rows: How many there are.
    """
    cut: list[bool] = []

    def before(module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        del module
        value = args[0] if _is_alone(args, kwargs) else None
        cut.append(isinstance(value, Tensor) and value.ndim == 3 and value.shape[:2] == (1, n_rows))
        return ((args[0].index_select(1, rows), *args[1:]), kwargs) if cut[-1] else None

    def after(module: nn.Module, args: Any, output: Any) -> Any:
        del module, args
        part = first_tensor(output)
        if not cut.pop() or part is None:
            return output
        whole = part.new_zeros(1, n_rows, part.shape[-1])
        return replace_first(output, whole.index_copy_(1, rows, part))

    handles = (
        module.register_forward_pre_hook(before, with_kwargs=True),
        module.register_forward_hook(after),
    )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _is_alone(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """True if the first argument is the only tensor: others might belong to the rows as well."""
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    return len(tensors) == 1 and len(args) > 0 and args[0] is tensors[0]
