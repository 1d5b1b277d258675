"""How does a block add, whose update is no sum of its parts?  Two mistakes are known by their form.

An activation behind the addition, ``act(x + write)``, bends the stream itself; a branch with an
axis of length one, such as ``[batch, 1, d_model]``, is silently repeated along it when it is added.
Both are proved on the block's twin, as plain sums are (see `resstream.stream.writers`).
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from resstream.stream.spec import Oddity
from resstream.stream.tracing import BlockTrace
from resstream.stream.writers import Writer, candidates, tolerance

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu (tanh)": lambda value: functional.gelu(value, approximate="tanh"),
    "silu": functional.silu,
    "elu": functional.elu,
    "leaky_relu": functional.leaky_relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}
_MOST = 2
"""Writes of a block that are looked for."""
_AXES = ("batch", "pos", "d_model")


@dataclass(frozen=True, slots=True)
class Addition:
    """How an unproved block adds to its stream."""

    kind: Oddity
    reason: str
    """In a sentence, with the parts."""


def odd_addition(trace: BlockTrace, other: BlockTrace) -> Addition | None:
    """The mistake that explains the block's output; None if neither does.

    Args:
        trace: A run of the block's twin.
        other: The same on another stream.
    """
    pool, _ = candidates(trace)
    return _activated(trace, pool) or _broadcast(trace, other, pool)


def _activated(trace: BlockTrace, pool: Sequence[Writer]) -> Addition | None:
    """``output = act(x + write)``, or ``act(act(x + first) + second)`` with either one plain."""
    limit = tolerance(trace.stream.dtype)
    stream, goal = trace.stream.double(), trace.output.double()
    for (name, act), ends in itertools.product(_ACTIVATIONS.items(), (True, False)):
        for parts, value in _sums(stream, pool, act, activated=not ends):
            reached = act(value) if ends else value
            if float((reached - goal).norm()) <= limit * float(goal.norm()):
                return Addition(
                    "activation",
                    f"an activation ({name}) stands behind the addition of {' and '.join(parts)}: "
                    "it changes the stream itself",
                )
    return None


def _sums(
    stream: Tensor, pool: Sequence[Writer], act: Callable[[Tensor], Tensor], *, activated: bool
) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """Streams behind one or two writes, the first of them with or without the activation.

    Args:
        stream: What the block was given.
        pool: What may have been written.
        act: The activation.
        activated: Only sums whose first addition is followed by it.
    """
    for first in pool:
        value = stream + first.raw
        if not activated:
            yield (first.part.path,), value
        for start in (act(value),) if activated else (value, act(value)):
            for second in pool:
                if second.part.order > first.part.order:
                    yield (first.part.path, second.part.path), start + second.raw


def _broadcast(trace: BlockTrace, other: BlockTrace, pool: Sequence[Writer]) -> Addition | None:
    """What is left of the update without up to two parts, if it is the same along an axis.

    What does not depend on the stream is a bias or a position's vector, and no mistake.
    """
    limit = tolerance(trace.stream.dtype)
    there = {writer.part.path: writer for writer in candidates(other)[0]}
    pool = [writer for writer in pool if writer.part.path in there]
    update, elsewhere = _update(trace), _update(other)
    for size in range(_MOST + 1):
        for chosen in itertools.combinations(pool, size):
            left = update - sum((writer.raw for writer in chosen), torch.zeros_like(update))
            axes = _constant_axes(left, limit * float(update.norm()))
            if not axes:
                continue
            again = elsewhere - sum(
                (there[writer.part.path].raw for writer in chosen), torch.zeros_like(update)
            )
            if float((again - left).norm()) > limit * float(left.norm()):
                return Addition("broadcast", _repeated(axes, [w.part.path for w in chosen]))
    return None


def _update(trace: BlockTrace) -> Tensor:
    return trace.output.double() - trace.stream.double()


def _constant_axes(left: Tensor, least: float) -> tuple[int, ...]:
    """Axes along which `left` is the same; none if it is less than `least`."""
    size = float(left.norm())
    if not size > 1e3 * least:
        return ()
    return tuple(
        axis
        for axis in range(left.ndim)
        if left.shape[axis] > 1 and float((left - left.mean(axis, keepdim=True)).norm()) <= least
    )


def _repeated(axes: tuple[int, ...], beside: Sequence[str]) -> str:
    shape = ", ".join("1" if axis in axes else name for axis, name in enumerate(_AXES))
    besides = f" beside {' and '.join(beside)}" if beside else ""
    return (
        f"a branch of shape [{shape}] is added{besides} and repeated along "
        f"{' and '.join(_AXES[axis] for axis in axes)}"
    )
