"""The parts of a block around its writers: norms, readers, branches, output matrices, order.

Everything here is told by what the parts do in a trace, not by their names; names only decide
whether a write is called `attn`, `mlp` or `mixer`.
"""

import re
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from resstream.stream.spec import WriteName
from resstream.stream.tracing import BlockTrace, PartTrace, with_weights
from resstream.stream.writers import Writer

_ATTENTION = re.compile(r"attn|attention", re.I)
_MLP = re.compile(r"mlp|ffn|feed_?forward|moe|expert", re.I)
_MIXER = re.compile(r"mamba|mixer|ssm|conv|rglru|recurrent", re.I)


def find_norms(trace: BlockTrace, weights: dict[str, Tensor] | None) -> tuple[PartTrace, ...]:
    """Parts that do not care how large their input is: norms over the stream's width."""

    def again(part: PartTrace) -> Callable[[Tensor], Tensor]:
        return lambda value: _call(part, value, weights)

    return tuple(
        part
        for part in trace.parts
        if part.first_input is not None
        and part.output.shape == trace.stream.shape
        and is_norm(part.module, part.first_input, part.output, again(part))
    )


def is_norm(
    module: nn.Module, given: Tensor, output: Tensor, again: Callable[[Tensor], Tensor]
) -> bool:
    """True if `module` gives the same for four times the input, changes it, and is no matrix.

    Args:
        module: The part in question.
        given: What it received.
        output: What it gave.
        again: Calls it on another input.
    """
    if given.shape != output.shape:
        return False
    if sum(value.numel() for value in module.parameters()) > 2 * given.shape[-1]:
        return False
    try:
        larger = again(4 * given)
    except (TypeError, RuntimeError):  # it wants more than one argument: not a norm
        return False
    unchanged = torch.allclose(output, given, rtol=1e-3, atol=1e-3)
    return not unchanged and torch.allclose(
        larger, output, rtol=3e-2, atol=3e-2 * float(output.std()), equal_nan=True
    )


def _call(part: PartTrace, value: Tensor, weights: dict[str, Tensor] | None) -> Tensor:
    if weights is None:
        return part.module(value)
    prefix = part.path + "."
    own = {
        name.removeprefix(prefix): weight
        for name, weight in weights.items()
        if name.startswith(prefix)
    }
    return with_weights(part.module, own, (value,), {})


def find_reader(
    writer: Writer, stream: Tensor, norms: Sequence[PartTrace], trace: BlockTrace
) -> PartTrace | None:
    """The norm through which a write reads `stream`: it feeds the writer, or is the nearest."""
    reading = [
        norm
        for norm in norms
        if norm.order < writer.part.order
        and norm.first_input is not None
        and _close(norm.first_input, stream)
    ]
    if len(reading) < 2:
        return reading[0] if reading else None
    inside = [part for part in trace.parts if _within(part.path, _sublayer(writer.part.path))]
    for norm in reading:
        if any(_feeds(norm, part) for part in inside):
            return norm
    return reading[-1]


def _feeds(norm: PartTrace, part: PartTrace) -> bool:
    values = [*part.inputs.values(), part.first_input]
    return any(
        value is not None and value.shape == norm.output.shape and torch.equal(value, norm.output)
        for value in values
    )


def _sublayer(path: str) -> str:
    return path.split(".", maxsplit=1)[0]


def _within(path: str, root: str) -> bool:
    return path == root or path.startswith(root + ".")


def _close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    error = (one.double() - other.double()).norm() / other.double().norm().clamp_min(1e-30)
    return float(error) < (1e-4 if one.dtype in (torch.float32, torch.float64) else 2e-2)


def find_branch(writer: Writer, norms: Sequence[PartTrace], trace: BlockTrace) -> PartTrace | None:
    """The part that gives the raw branch, where the writer is a norm or a scale behind it."""
    part = writer.part
    source = part.first_input
    has_matrix = any(value.ndim >= 2 for value in part.module.parameters())
    if (
        source is None
        or source.shape != part.output.shape
        or has_matrix
        or writer.minus is not None
    ):
        return None
    if part not in norms and torch.equal(source, part.output):
        return None
    givers = [
        other
        for other in trace.parts
        if other.order < part.order
        and not _within(other.path, part.path)
        and other.output.shape == source.shape
        and torch.equal(other.output, source)
    ]
    return min(givers, key=lambda other: (other.depth, -other.order), default=None)


def product_candidates(
    writer: Writer, branch: PartTrace | None, after: int, trace: BlockTrace
) -> list[tuple[PartTrace, bool]]:
    """Matrix products that could be the projection into the stream, likeliest first.

    They end before the write does: inside the writer if that holds matrices, else after the
    previous write.  With each goes whether its weight is stored ``[in, out]``.
    """
    goal = branch or writer.part
    products = [
        (part, transposed)
        for part in trace.parts
        if after < part.order <= writer.part.order
        and part.output.shape[-1:] == trace.stream.shape[-1:]  # a gate's output may have no axis
        and (transposed := _is_product(part)) is not None
    ]
    inside = [item for item in products if _within(item[0].path, goal.path)]
    same = [item for item in products if _sublayer(item[0].path) == _sublayer(goal.path)]
    return sorted(inside or same or products, key=lambda item: -item[0].order)


def _is_product(part: PartTrace) -> bool | None:
    """False for ``x @ W.T``, True for ``x @ W``, None if the part is no matrix product."""
    weight = getattr(part.module, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2 or isinstance(part.module, nn.Embedding):
        return None
    if any(True for _ in part.module.children()) or part.first_input is None:
        return None
    wide, out = part.first_input.shape[-1], part.output.shape[-1]
    is_linear = isinstance(part.module, nn.Linear)
    if tuple(weight.shape) == (out, wide) and (is_linear or wide != out):
        return False
    return True if tuple(weight.shape) == (wide, out) else None


def name_writers(writers: Sequence[Writer]) -> tuple[WriteName, ...] | None:
    """`attn`, `mlp` or `mixer` for each writer; None if they can't be told apart.

    A block with one write has a `mixer`, whatever the part is called (contracts).
    """
    if len(writers) == 1:
        return ("mixer",)
    names: list[WriteName | None] = [_name_of(writer.part) for writer in writers]
    every: tuple[WriteName, ...] = ("attn", "mlp", "mixer")
    spare: list[WriteName] = [name for name in every if name not in names]
    named: list[WriteName] = [name or spare.pop(0) for name in names]
    return tuple(named) if len(set(named)) == len(named) else None


def _name_of(part: PartTrace) -> WriteName | None:
    for text in (part.path, type(part.module).__name__):
        kinds: list[tuple[re.Pattern[str], WriteName]] = [
            (_ATTENTION, "attn"),
            (_MLP, "mlp"),
            (_MIXER, "mixer"),
        ]
        for pattern, name in kinds:
            if pattern.search(text):
                return name
    return None
