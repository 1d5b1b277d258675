"""Into which parts is a logit taken apart, and what does each of them add?

All at one position of each sequence: the direction that the head reads is pulled back through the
frozen final norm (and through the norm or gain of a branch); a part adds its dot product with that.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from resstream.errors import UnsupportedModelError
from resstream.stream.linear_parts import (
    final_norm,
    freeze_norm,
    head_matrix,
    output_matrix,
    reading_inputs,
    write_norm,
)
from resstream.stream.model import StreamModel
from resstream.stream.sites import block_site
from resstream.stream.spec import WriteSpec

Level = Literal["write", "head", "neuron"]

_SUM_TOLERANCE = 1e-3
"""Largest part of the last stream that the writes may leave unexplained; far above rounding."""

_LOGIT_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-5}
"""Largest error of ``factor * (W_U y + b_U)`` over the largest logit, if the readout is linear."""


@dataclass(frozen=True, slots=True)
class Part:
    """One summand."""

    label: str
    kind: str
    """`embed`, a write (`attn`, `mlp`, ...), `head`, `neuron`, or `bias`."""
    layer: int
    """-1 for what belongs to no block."""


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """One run of a batch, at the position that is taken apart."""

    embed: Float[Tensor, "batch d_model"]
    writes: dict[str, Float[Tensor, "batch d_model"]]
    """As added to the stream, by site."""
    factors: dict[str, float]
    """By what later blocks multiply each write (1 in a plain stream)."""
    branches: dict[str, Float[Tensor, "batch d_model"]]
    """Raw outputs, of writes that pass a norm or a gain."""
    inputs: dict[str, Float[Tensor, "batch d_in"]]
    """What the output matrices read."""
    last: Float[Tensor, "batch d_model"]
    logits: Float[Tensor, "batch d_vocab"]


@torch.no_grad()
def snapshot(
    model: StreamModel, tokens: Int[Tensor, "batch pos"], position: int, split: Sequence[WriteSpec]
) -> Snapshot:
    """Run `tokens` and keep what attribution needs; `split` are writes to be split further.

    Raises:
        UnsupportedModelError: The last stream is not the sum of the writes.
    """
    kept: dict[str, Tensor] = {}
    first = block_site(0, "resid_pre")
    last = block_site(model.spec.n_layers - 1, "resid_post")
    branched = {write.site: _branch_site(write) for write in split if write.branch is not None}

    def keeping(site: str) -> Callable[[Tensor], None]:
        return lambda value: kept.update({site: value[:, position].detach().clone()})

    sites = [first, last, *branched.values(), *(write.site for write in model.spec.writes)]
    with reading_inputs(model, split) if split else nullcontext({}) as inputs:
        logits = model.run(tokens, {site: keeping(site) for site in sites})
    shape = (*tokens.shape, -1)
    factors = list(_later_factors(model))
    found = Snapshot(
        embed=factors[0] * kept[first].double(),
        writes={write.site: kept[write.site].double() for write in model.spec.writes},
        factors={w.site: f for w, f in zip(model.spec.writes, factors[1:], strict=True)},
        branches={site: kept[branch] for site, branch in branched.items()},
        inputs={site: value.reshape(shape)[:, position].double() for site, value in inputs.items()},
        last=kept[last],
        logits=logits[:, position],
    )
    _check_sum(model, found)
    return found


def _branch_site(write: WriteSpec) -> str:
    return block_site(write.layer, f"{write.name}_branch")


def _later_factors(model: StreamModel) -> Iterator[float]:
    """By what the embedding, and then each write, is multiplied until the end of the stream."""
    factor = 1.0
    factors = [factor]
    for write in reversed(model.spec.writes):
        factors.append(factor := factor * write.skip_scale)
    return iter(reversed(factors))


def _check_sum(model: StreamModel, found: Snapshot) -> None:
    total = found.embed + sum(found.factors[site] * w for site, w in found.writes.items())
    error = float((total - found.last.double()).norm() / found.last.double().norm())
    narrow = found.last.dtype in (torch.bfloat16, torch.float16)
    if not error <= (0.05 if narrow else _SUM_TOLERANCE):
        raise UnsupportedModelError(
            f"direct attribution needs a stream that is the sum of its writes; in {model.name} the "
            f"sum is off by {error:.2g} of the last stream (a norm or a gate stands in the stream)"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Reader:
    """What is explained: a direction that is read from the last stream, and its value."""

    direction: Float[Tensor, "batch d_model"]
    """Pulled back through the head and the frozen final norm."""
    bias: Float[Tensor, " batch"]
    """What the biases of the final norm and of the head add."""
    value: Float[Tensor, " batch"]
    """What the parts should sum to, from the model's own output."""
    size: Float[Tensor, " batch"]
    """The larger of the logits in question, to hold errors against."""
    is_capped: bool
    """True if the model puts its logits through a soft-cap; `value` is then before it."""


@torch.no_grad()
def read_tokens(
    model: StreamModel,
    found: Snapshot,
    answer: Int[Tensor, " batch"],
    wrong: Int[Tensor, " batch"] | None,
) -> Reader:
    """Read the logit of `answer`, less that of `wrong`.

    Raises:
        UnsupportedModelError: The readout is not a norm, one matrix, and at most a soft-cap.
    """
    weight, bias = head_matrix(model)
    norm = final_norm(model)
    normed = found.last if norm is None else norm(found.last[:, None])[:, 0]
    plain = torch.nn.functional.linear(normed, weight, bias).double()
    factor, is_capped = _scale_of(model, plain, found.logits)
    logits = factor * plain if is_capped else found.logits.double()
    rows = weight[answer].double()
    constant = _entries(bias, answer)
    value, size = _pick(logits, answer), _pick(logits, answer).abs()
    if wrong is not None:
        rows = rows - weight[wrong].double()
        constant = constant - _entries(bias, wrong)
        size = torch.maximum(size, _pick(logits, wrong).abs())
        value = value - _pick(logits, wrong)
    direction, offset = _before_norm(model, found, factor * rows)
    return Reader(direction, offset + factor * constant, value, size, is_capped)


@torch.no_grad()
def read_direction(
    model: StreamModel, found: Snapshot, direction: Float[Tensor, " d_model"]
) -> Reader:
    """Read the component of the last stream, after the final norm, along `direction`."""
    rows = direction.double().to(found.last.device).expand_as(found.embed)
    norm = final_norm(model)
    normed = found.last if norm is None else norm(found.last[:, None])[:, 0]
    value = (normed.double() * rows).sum(-1)
    pulled, offset = _before_norm(model, found, rows)
    return Reader(pulled, offset, value, value.abs(), is_capped=False)


def _before_norm(model: StreamModel, found: Snapshot, rows: Tensor) -> tuple[Tensor, Tensor]:
    norm = final_norm(model)
    if norm is None:
        return rows, rows.new_zeros(len(rows))
    frozen = freeze_norm(_on_rows(norm), found.last, what=f"the final norm of {model.name}")
    return frozen.pull(rows), rows @ frozen.bias


def _on_rows(norm: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The norm on ``[batch, d_model]`` as it runs on ``[batch, pos, d_model]``."""
    return lambda rows: norm(rows) if rows.ndim == 3 else norm(rows[:, None])[:, 0]


def _scale_of(model: StreamModel, plain: Tensor, logits: Tensor) -> tuple[float, bool]:
    """What the model multiplies its head's output by, and whether it then bends it."""
    own = logits.double()
    factor = float((plain * own).sum() / plain.square().sum())
    tolerance = _LOGIT_TOLERANCE.get(logits.dtype, 5e-2)
    if (factor * plain - own).abs().max() <= tolerance * own.abs().max():
        return factor, False
    order = plain.argsort(-1)
    steps = own.gather(-1, order).diff(dim=-1)
    if (steps >= -tolerance * own.abs().max()).all():
        return 1.0, True
    raise UnsupportedModelError(
        f"direct attribution needs logits that come from the final norm and one matrix; those of "
        f"{model.name} are off by {float((factor * plain - own).abs().max()):.2g}"
    )


def _entries(bias: Tensor | None, tokens: Tensor) -> Tensor | float:
    return 0.0 if bias is None else bias[tokens].double()


def _pick(logits: Tensor, tokens: Tensor) -> Tensor:
    return logits.double().gather(-1, tokens[:, None])[:, 0]


def contributions(
    model: StreamModel, found: Snapshot, reader: Reader, level: Level, split: Sequence[WriteSpec]
) -> tuple[list[Part], Float[Tensor, "batch part"]]:
    """All parts in order of execution, and what each adds."""
    parts = [Part("embed", "embed", -1)]
    columns = [_dot(reader.direction, found.embed)]
    for write in model.spec.writes:
        direction = found.factors[write.site] * reader.direction
        if write not in split:
            parts.append(Part(write.label, write.name, write.layer))
            columns.append(_dot(direction, found.writes[write.site]))
            continue
        inner, rest = _split(model, found, write, direction)
        if level == "head":
            inner = inner.unflatten(-1, (n_heads(model), -1)).sum(-1)
        for index, column in enumerate(inner.unbind(-1)):
            parts.append(Part(f"L{write.layer} {level} {index}", level, write.layer))
            columns.append(column)
        if rest is not None:
            parts.append(Part(f"{write.label} bias", "bias", write.layer))
            columns.append(rest)
    parts.append(Part("final biases", "bias", -1))
    columns.append(reader.bias.expand(len(found.last)))
    return parts, torch.stack(columns, -1)


def _split(
    model: StreamModel, found: Snapshot, write: WriteSpec, direction: Tensor
) -> tuple[Float[Tensor, "batch d_in"], Float[Tensor, " batch"] | None]:
    """What each input of the output matrix adds along `direction`, and what the biases add."""
    weight, bias = output_matrix(model, write)
    pulled, rest = write.scale * direction, torch.zeros(len(direction), dtype=torch.float64)
    rest = rest.to(direction.device)
    norm = write_norm(model, write)
    if norm is not None:
        frozen = freeze_norm(
            _on_rows(norm), found.branches[write.site], what=f"the norm of {write.label}"
        )
        rest = pulled @ frozen.bias
        pulled = frozen.pull(pulled)
    if bias is not None:
        rest = rest + pulled @ bias.double()
    inner = found.inputs[write.site] * (pulled @ weight.double().T)
    _check_split(write, inner.sum(-1) + rest, _dot(direction, found.writes[write.site]), inner)
    return inner, rest if bias is not None or norm is not None else None


def _check_split(write: WriteSpec, total: Tensor, whole: Tensor, inner: Tensor) -> None:
    size = torch.maximum(whole.abs(), inner.abs().sum(-1))
    if not ((total - whole).abs() <= 1e-3 * size).all():
        raise UnsupportedModelError(
            f"{write.label} is not the sum of what its output matrix makes of its inputs: off by "
            f"{float((total - whole).abs().max()):.2g}; use level='write'"
        )


def n_heads(model: StreamModel) -> int:
    """How many heads write in each attention layer.

    Raises:
        UnsupportedModelError: The model's config does not say.
    """
    config: Any = getattr(model.module, "config", None)
    for name in ("num_attention_heads", "n_heads", "n_head"):
        count = getattr(config, name, None)
        if isinstance(count, int):
            return count
    raise UnsupportedModelError(f"the config of {model.name} does not say how many heads it has")


def _dot(one: Tensor, other: Tensor) -> Tensor:
    return (one * other).sum(-1)
