"""What does each changed layer of two checkpoints of one shape cost?  Transplants both ways."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from resstream.analysis.intervals import bootstrap_interval, by_document
from resstream.analysis.losses import summed_divergences, summed_losses
from resstream.checks.repairs import Weights
from resstream.checks.weights import word_of
from resstream.errors import ConfigError
from resstream.recording.ledger import row_norms
from resstream.stream.model import StreamModel
from resstream.stream.substitution import substituted
from resstream.stream.texts import Corpus
from resstream.sweep.replay import run_base

_BATCH_TOKENS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedPart:
    """A block (or what lies outside of blocks) whose weights differ."""

    layer: int | None
    write: str | None
    """The only write whose weights differ; None if several do."""
    names: tuple[str, ...]
    weight_change: float
    """Frobenius norm of the difference over that of the reference; NaN if not finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Mean change per token with its interval."""

    value: float
    ci: tuple[float, float]
    after: float
    """Mean with the transplant in place: loss, or divergence from the reference."""
    n_tokens: int


def require_same_shape(model: StreamModel, reference: StreamModel) -> None:
    """Two checkpoints can be compared if all of their parameters have the same shapes.

    Raises:
        ConfigError: They have not.
    """
    own = {name: value.shape for name, value in model.module.named_parameters()}
    other = {name: value.shape for name, value in reference.module.named_parameters()}
    odd = sorted(name for name in own.keys() | other.keys() if own.get(name) != other.get(name))
    if odd:
        first = odd[0]
        raise ConfigError(
            f"the reference must have the shape of the model; {len(odd)} parameters differ, first "
            f"{first}: {tuple(own.get(first, ()))} against {tuple(other.get(first, ()))}"
        )


@torch.no_grad()
def changed_parts(model: StreamModel, reference: StreamModel) -> list[ChangedPart]:
    """Blocks whose weights differ in any bit, in order; what lies outside of blocks comes last."""
    theirs = dict(reference.module.named_parameters())
    groups: dict[int | None, list[str]] = {}
    for name, value in model.module.named_parameters():
        if not _same_bits(value.data, theirs[name].data):
            groups.setdefault(_layer_of(model, name), []).append(name)
    order = sorted(groups, key=lambda layer: (layer is None, layer or 0))
    return [_part(model, reference, layer, groups[layer]) for layer in order]


def _same_bits(one: Tensor, other: Tensor) -> bool:
    # Not torch.equal: NaN would differ from itself, and -0 would equal 0.
    left, right = one.contiguous().cpu().reshape(-1), other.contiguous().cpu().reshape(-1)
    if left.dtype != right.dtype:
        return bool(torch.equal(left.float(), right.float()))
    return bool(torch.equal(left.view(torch.uint8), right.view(torch.uint8)))


def _layer_of(model: StreamModel, name: str) -> int | None:
    for block in model.spec.blocks:
        if name.startswith(f"{block.module}."):
            return block.layer
    return None


def _part(
    model: StreamModel, reference: StreamModel, layer: int | None, names: Sequence[str]
) -> ChangedPart:
    squares, own = 0.0, 0.0
    for name in names:
        theirs = reference.module.get_parameter(name).double()
        squares += float((model.module.get_parameter(name).double() - theirs).square().sum())
        own += float(theirs.square().sum())
    writes = {_write_of(model, layer, name) for name in names}
    return ChangedPart(
        layer=layer,
        write=writes.pop() if len(writes) == 1 else None,
        names=tuple(names),
        weight_change=(squares / own) ** 0.5 if own else float("inf"),
    )


def _write_of(model: StreamModel, layer: int | None, name: str) -> str | None:
    if layer is None:
        return None
    for write in model.spec.blocks[layer].writes:
        if name.startswith((f"{write.module}.", f"{write.reader}.")) or name == write.output_matrix:
            return write.name
    return word_of(name)


def weights_of(model: StreamModel, names: Sequence[str]) -> Weights:
    """These parameters of a model, to stand in for another's."""
    return {name: model.module.get_parameter(name).data for name in names}


@torch.no_grad()
def transplant(
    into: StreamModel,
    weights: Sequence[Weights],
    corpus: Corpus,
    *,
    measured_by: Literal["loss", "divergence"],
    towards: StreamModel,
) -> list[Effect]:
    """Change of the loss, or of the divergence from `towards`, with each set of weights."""
    before = np.zeros(len(corpus.sequences))
    after = np.zeros((len(weights), len(corpus.sequences)))
    for batch in corpus.batches(_BATCH_TOKENS):
        rows = list(batch.rows)
        goal = towards.forward(batch.tokens) if measured_by == "divergence" else None
        before[rows] = _score(into.forward(batch.tokens), batch.tokens, goal)
        for index, each in enumerate(weights):
            with substituted(into.module, each):
                after[index, rows] = _score(into.forward(batch.tokens), batch.tokens, goal)
    return [_effect(row, before, corpus) for row in after]


def _score(logits: Tensor, tokens: Tensor, goal: Tensor | None) -> Float[np.ndarray, " row"]:
    return summed_losses(logits, tokens) if goal is None else summed_divergences(goal, logits)


def _effect(
    after: Float[np.ndarray, " sequence"], before: Float[np.ndarray, " sequence"], corpus: Corpus
) -> Effect:
    counts = np.array([len(sequence) - 1 for sequence in corpus.sequences])
    change = after - before
    sums, tokens = by_document(change, counts, np.array(corpus.documents))
    return Effect(
        value=float(change.sum() / counts.sum()),
        ci=bootstrap_interval(sums, tokens),
        after=float(after.sum() / counts.sum()),
        n_tokens=int(counts.sum()),
    )


@torch.no_grad()
def own_errors(
    model: StreamModel, reference: StreamModel, corpus: Corpus
) -> tuple[Float[np.ndarray, " write"], Float[np.ndarray, " layer"]]:
    """How far each write is off by itself, and how far the stream has drifted behind each block.

    The first is measured on the reference's own stream, so that nothing is inherited: it is exactly
    0 where weights are equal.  Both are norms of the difference over the reference's norm: the
    largest error of a write over the tokens of one batch, and the median drift.
    """
    batch = next(corpus.batches(_BATCH_TOKENS))
    sites = [write.site for write in model.spec.writes]
    good = run_base(reference, batch.tokens, sites)
    frame, kept = model.begin(batch.tokens), dict[str, Tensor]()

    def keeping(site: str) -> Callable[[Tensor], None]:
        return lambda value: kept.update({site: value.detach().clone()})

    with model.hooked({site: keeping(site) for site in sites}):
        for layer in range(model.spec.n_layers):
            model.run_block(layer, good.streams[layer], frame)
    errors = [_relative(kept[site], good.values[site]).max() for site in sites]
    drift = [
        np.median(_relative(own, theirs))
        for own, theirs in zip(_streams(model, batch.tokens), good.streams[1:], strict=True)
    ]
    return np.array(errors), np.array(drift)


def _streams(model: StreamModel, tokens: Tensor) -> Iterator[Tensor]:
    yield from run_base(model, tokens).streams[1:]


def _relative(own: Tensor, theirs: Tensor) -> Float[np.ndarray, "batch pos"]:
    """Norm of the difference over the norm; 0 where both are 0, infinite where not finite."""
    size = row_norms(theirs.double())
    off = row_norms(own.double() - theirs.double())
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(off == 0, 0.0, off / size)
    return np.nan_to_num(ratio, nan=np.inf, posinf=np.inf)
