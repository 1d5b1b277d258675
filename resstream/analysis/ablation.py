"""What does the model lose without a write?

The effect of an ablation is the cross-entropy with the write changed less that of the clean run, in
nats per predicted token, on the same tokens: positive means that the write was useful.

* ``zero``: nothing is written.  Off the distribution; also removes what the write adds as a
constant.
* ``mean``: the write's mean over the reference set, first positions apart from the rest.
* ``resample``: the write of another sequence of the same batch, position by position.

The reference set of ``mean`` and ``resample`` is the text itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from resstream.analysis.intervals import bootstrap_interval, by_document
from resstream.analysis.losses import token_losses
from resstream.errors import ConfigError, TextError
from resstream.stream.model import StreamModel
from resstream.stream.provenance import provenance_of
from resstream.stream.result import Result
from resstream.stream.sites import match_sites
from resstream.stream.spec import WriteSpec
from resstream.stream.texts import Corpus, Texts, read_corpus
from resstream.sweep.replay import run_variants
from resstream.sweep.variants import Change, Edit, Variant, replace, resample, zero

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

Kind = Literal["zero", "mean", "resample"]
Level = Literal["sublayer", "block", "head"]
Progress = Callable[[int, int], None]
"""Called with what is done and what there is to do."""

_BATCH_TOKENS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class AblationEffect:
    """The effect of one ablation."""

    layer: int
    """First block that it touches."""
    write: str
    """`attn`, `mlp`, `mixer`, or `block` for all writes of the block (or group) together."""
    kind: str
    effect: float
    """Cross-entropy with the change less that without, in nats per predicted token."""
    ci: tuple[float, float]
    """95 % bootstrap interval over documents."""
    n_tokens: int
    """Predicted tokens that it was measured on."""
    layers: tuple[int, ...]
    """All blocks that it touches."""


@dataclass(frozen=True, kw_only=True)
class AblationResult(Result):
    """Effects of ablating writes, in the order of execution."""

    schema: ClassVar[str] = "resstream.ablate/1"

    model: str
    text: str
    base_loss: float
    """Cross-entropy of the clean run, in nats per predicted token."""
    effects: tuple[AblationEffect, ...]

    def to_dataframe(self) -> "pd.DataFrame":
        """One row an ablation; effects and interval ends in nats per token."""
        import pandas as pd

        rows = [
            {
                "layer": item.layer,
                "write": item.write,
                "layers": " ".join(map(str, item.layers)),
                "kind": item.kind,
                "effect_nats": item.effect,
                "ci_low_nats": item.ci[0],
                "ci_high_nats": item.ci[1],
                "n_tokens": item.n_tokens,
            }
            for item in self.effects
        ]
        return pd.DataFrame(rows)

    def plot(self) -> "go.Figure":
        """Bars by layer with intervals; harmful writes (negative effect) in their own colour."""
        from resstream.figures.bars import BarGroup, ablation_bars

        names = dict.fromkeys(item.write for item in self.effects)
        groups = []
        for name in names:
            items = [item for item in self.effects if item.write == name]
            groups.append(
                BarGroup(
                    name=name,
                    layers=np.array([item.layer for item in items]),
                    effects=np.array([item.effect for item in items]),
                    low=np.array([item.ci[0] for item in items]),
                    high=np.array([item.ci[1] for item in items]),
                )
            )
        return ablation_bars(groups)


@dataclass(frozen=True, slots=True)
class Target:
    """Writes that are ablated together."""

    writes: tuple[WriteSpec, ...]

    @property
    def layers(self) -> tuple[int, ...]:
        """The blocks they belong to."""
        return tuple(sorted({write.layer for write in self.writes}))

    @property
    def name(self) -> str:
        """`attn`, `mlp`, ... for one write, `block` for several."""
        return self.writes[0].name if len(self.writes) == 1 else "block"


def ablate(  # noqa: PLR0913  (all but the first two are options)
    model: StreamModel,
    texts: Texts | Corpus = None,
    *,
    kind: Kind = "zero",
    level: Level = "sublayer",
    sites: Sequence[str] | None = None,
    groups: Sequence[Sequence[int]] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> AblationResult:
    """Ablate writes one at a time and measure the loss.

    Args:
        model: A causal language model.
        texts: What it reads (see `resstream.stream.texts.read_corpus`), or a corpus made of it.
        kind: What takes the place of the write.
        level: `sublayer` takes each write alone, `block` all writes of a block together.
        sites: Names or globs of writes (``blocks.*.mlp_out``) to restrict it to.
        groups: Groups of layers, each ablated as a whole; `level` and `sites` are not used then.
        seed: Of the bootstrap and of the resampling.
        progress: Called after each ablation of each batch.

    Raises:
        UnsupportedModelError: The model does not predict tokens.
        UnknownSiteError: A name fits no write.
        TextError: The text can't be used, or has too few sequences for this `kind`.
    """
    model.require_language_model("ablate")
    corpus = read_corpus(model, texts, seed=seed)
    targets = choose_targets(model, level=level, sites=sites, groups=groups)
    measured = measure_ablations(model, corpus, targets, kind=kind, seed=seed, progress=progress)
    base, effects = measured.base.sum() / measured.counts.sum(), measured.effects
    return AblationResult(
        provenance=provenance_of(model, corpus.description, corpus.hash, seed=seed),
        model=model.name,
        text=corpus.description,
        base_loss=float(base),
        effects=tuple(
            _effect(target, kind, row, measured, corpus, seed)
            for target, row in zip(targets, effects, strict=True)
        ),
    )


def choose_targets(
    model: StreamModel,
    *,
    level: Level = "sublayer",
    sites: Sequence[str] | None = None,
    groups: Sequence[Sequence[int]] | None = None,
) -> list[Target]:
    """What is ablated: single writes, blocks, or groups of layers.

    Raises:
        ConfigError: An unknown level, or a group with a layer that does not exist.
        UnknownSiteError: A name fits no write.
    """
    blocks = model.spec.blocks
    if groups is not None:
        for layer in {layer for group in groups for layer in group}:
            if not 0 <= layer < len(blocks):
                raise ConfigError(f"layer must be in 0..{len(blocks) - 1}, got {layer}")
        return [Target(tuple(w for i in sorted(set(g)) for w in blocks[i].writes)) for g in groups]
    known = [write.site for write in model.spec.writes]
    chosen = set(known if sites is None else match_sites(sites, known))
    if level == "sublayer":
        return [Target((write,)) for write in model.spec.writes if write.site in chosen]
    if level == "block":
        return [Target(b.writes) for b in blocks if any(w.site in chosen for w in b.writes)]
    raise ConfigError(f"level must be sublayer or block, got {level!r}")


@dataclass(frozen=True, slots=True)
class Measured:
    """Sums over the predicted tokens of each sequence."""

    base: np.ndarray
    """Clean loss ``[sequence]``, in nats."""
    effects: np.ndarray
    """Change of the loss ``[target, sequence]``, in nats."""
    counts: np.ndarray
    """Predicted tokens ``[sequence]``."""


def measure_ablations(
    model: StreamModel,
    corpus: Corpus,
    targets: Sequence[Target],
    *,
    kind: Kind,
    seed: int = 0,
    progress: Progress | None = None,
) -> Measured:
    """Run all ablations over the corpus, batch by batch."""
    means = _mean_writes(model, corpus, targets) if kind == "mean" else {}
    base = np.zeros(len(corpus.sequences))
    effects = np.zeros((len(targets), len(corpus.sequences)))
    done, total = 0, len(targets) * sum(1 for _ in corpus.batches(_BATCH_TOKENS))
    for batch in corpus.batches(_BATCH_TOKENS):
        change = _changes(kind, len(batch.rows), means, seed)
        variants = [
            Variant(target.name, tuple(Edit(w.site, change(w)) for w in target.writes))
            for target in targets
        ]
        rows = list(batch.rows)
        for index, (clean, changed) in enumerate(run_variants(model, batch.tokens, variants)):
            if index == 0:
                before = token_losses(clean, batch.tokens).double().sum(-1).cpu().numpy()
                base[rows] = before
            after = token_losses(changed, batch.tokens).double().sum(-1).cpu().numpy()
            effects[index, rows] = after - base[rows]
            done += 1
            if progress is not None:
                progress(done, total)
    counts = np.array([len(sequence) - 1 for sequence in corpus.sequences])
    return Measured(base, effects, counts)


def _changes(
    kind: Kind, n_rows: int, means: dict[str, Tensor], seed: int
) -> Callable[[WriteSpec], Change]:
    match kind:
        case "zero":
            return lambda write: zero
        case "mean":
            return lambda write: _from_mean(means[write.site])
        case "resample":
            if n_rows < 2:
                raise TextError(
                    "resample needs at least 2 sequences of one length in a batch, got 1; pass "
                    "more text, or shorter sequences"
                )
            order = torch.arange(n_rows).roll(1 + seed % (n_rows - 1))
            return lambda write: resample(order)
    raise ConfigError(f"kind must be zero, mean or resample, got {kind!r}")


def _from_mean(mean: Tensor) -> Change:
    """Replace by the mean at first positions (row 0) and elsewhere (row 1)."""

    def change(value: Tensor, base: Tensor) -> Tensor:
        rows = mean.to(value)
        positions = torch.ones(value.shape[1], dtype=torch.long, device=value.device)
        positions[0] = 0
        return replace(rows[positions])(value, base)

    return change


@torch.no_grad()
def _mean_writes(
    model: StreamModel, corpus: Corpus, targets: Sequence[Target]
) -> dict[str, Tensor]:
    """Mean write at first positions and elsewhere ``[2, d_model]``, by site, summed in float64."""
    sites = {write.site for target in targets for write in target.writes}
    width = model.spec.d_model
    sums = {site: torch.zeros(2, width, dtype=torch.float64) for site in sites}

    def adding(site: str) -> Callable[[Tensor], None]:
        def add(value: Tensor) -> None:
            wide = value.double().cpu()
            sums[site][0] += wide[:, 0].sum(0)
            sums[site][1] += wide[:, 1:].sum((0, 1))

        return add

    for batch in corpus.batches(_BATCH_TOKENS):
        with model.hooked({site: adding(site) for site in sites}):
            model.forward(batch.tokens)
    counts = torch.tensor([len(corpus.sequences), corpus.n_predicted], dtype=torch.float64)
    return {site: total / counts[:, None] for site, total in sums.items()}


def _effect(
    target: Target, kind: str, row: np.ndarray, measured: Measured, corpus: Corpus, seed: int
) -> AblationEffect:
    sums, counts = by_document(row, measured.counts, np.array(corpus.documents))
    return AblationEffect(
        layer=target.layers[0],
        write=target.name,
        kind=kind,
        effect=float(row.sum() / measured.counts.sum()),
        ci=bootstrap_interval(sums, counts, seed=seed),
        n_tokens=int(measured.counts.sum()),
        layers=target.layers,
    )
