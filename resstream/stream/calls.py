"""How a block is called: where the stream stands among its arguments and in what it returns.

Blocks of different libraries take the stream by position or by name and return a tensor or a tuple
that begins with it.  This is the one place that knows.
"""

import dataclasses
from typing import Any

import torch
from torch import Tensor

_STREAM_NAMES = ("hidden_states", "x", "src", "inputs_embeds", "input")


@dataclasses.dataclass(frozen=True, slots=True)
class BlockCall:
    """The arguments of one call of one block; `key` says which of them is the stream."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    key: int | str

    @property
    def stream(self) -> Tensor:
        """The stream that was handed in, ``[batch, pos, d_model]``."""
        return self.args[self.key] if isinstance(self.key, int) else self.kwargs[self.key]

    def with_stream(self, stream: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The same arguments with another stream."""
        if isinstance(self.key, int):
            return (*self.args[: self.key], stream, *self.args[self.key + 1 :]), self.kwargs
        return self.args, {**self.kwargs, self.key: stream}


def find_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> BlockCall | None:
    """Find the stream among the arguments of a call: the first float tensor of rank 3."""
    for index, value in enumerate(args):
        if is_stream_like(value):
            return BlockCall(args, dict(kwargs), index)
    names = [name for name in _STREAM_NAMES if name in kwargs] + list(kwargs)
    for name in names:
        if is_stream_like(kwargs[name]):
            return BlockCall(args, dict(kwargs), name)
    return None


def without_caches(call: BlockCall) -> BlockCall:
    """The same call without key-value caches, which would grow each time it is repeated.

    Some models (GraniteMoe) make one even if they are told not to.
    """
    kwargs = {name: None if _is_cache(value) else value for name, value in call.kwargs.items()}
    return BlockCall(call.args, kwargs, call.key)


def _is_cache(value: Any) -> bool:
    return any(kind.__name__ == "Cache" for kind in type(value).__mro__)


def is_stream_like(value: Any) -> bool:
    """True for a floating tensor ``[batch, pos, width]``."""
    return isinstance(value, Tensor) and value.ndim == 3 and value.is_floating_point()


def first_tensor(output: Any) -> Tensor | None:
    """The tensor that an output begins with, or None."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, tuple | list) and output:
        return first_tensor(output[0])
    return None


def replace_first(output: Any, tensor: Tensor) -> Any:
    """The same output with another first tensor."""
    if isinstance(output, Tensor):
        return tensor
    rest = [replace_first(output[0], tensor), *output[1:]]
    return tuple(rest) if isinstance(output, tuple) else rest


def largest_difference(one: Tensor, other: Tensor) -> float:
    """Largest absolute difference of two tensors; places where both are NaN count as 0."""
    both_nan = one.isnan() & other.isnan()
    return float(torch.where(both_nan, 0.0, (one - other).abs()).max())


def same_tensor(one: Tensor, other: Tensor) -> bool:
    """Equal shape and equal values, NaN counting as equal to NaN."""
    return one.shape == other.shape and bool(
        torch.all((one == other) | (one.isnan() & other.isnan()))
    )
