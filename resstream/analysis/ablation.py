"""What does the model lose without a write?

The effect of an ablation is the cross-entropy with the write changed less that of the clean run, in
nats per predicted token, on the same tokens: positive means that the write was useful.

* ``zero``: nothing is written.  Off the distribution; also removes what the write adds as a
constant.
* ``mean``: the write's mean over the reference set, first positions apart from the rest.
* ``resample``: the write of another sequence of the same batch, position by position.

The reference set of ``mean`` and ``resample`` is the text itself.  At level ``head`` it is not the
write that is changed but one head's part of what the attention hands to its output projection.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float

from resstream.analysis.ablation_result import AblationEffect, AblationResult, TokenEffects
from resstream.analysis.ablation_targets import (
    Kind,
    Level,
    Means,
    Target,
    choose_targets,
    make_variants,
    mean_values,
)
from resstream.analysis.intervals import bootstrap_interval, by_document, few
from resstream.analysis.losses import stream_losses
from resstream.stream.model import StreamModel
from resstream.stream.provenance import provenance_of
from resstream.stream.texts import Batch, Corpus, Texts, read_corpus
from resstream.sweep.activations import fast_activations
from resstream.sweep.journal import Journal
from resstream.sweep.memory import free_memory
from resstream.sweep.walk import BASE, Walk, group_variants, keeps_for
from resstream.sweep.walk_plan import (
    WalkPlan,
    estimate_seconds,
    most_together,
    plan_walks,
    rows_at_once,
)

Progress = Callable[[int, int], None]
"""Called with what is done and what there is to do, in layer-tokens."""

_BATCH_TOKENS = 512


def ablate(  # noqa: PLR0913  (all but the first two are options)
    model: StreamModel,
    texts: Texts | Corpus = None,
    *,
    kind: Kind = "zero",
    level: Level = "sublayer",
    sites: Sequence[str] | None = None,
    groups: Sequence[Sequence[int]] | None = None,
    per_token: bool = False,
    memory: int | None = None,
    seed: int = 0,
    journal: Journal | None = None,
    progress: Progress | None = None,
) -> AblationResult:
    """Ablate writes one at a time and measure the loss.

    Args:
        model: A causal language model.
        texts: What it reads (see `resstream.stream.texts.read_corpus`), or a corpus made of it.
        kind: What takes the place of the write.
        level: `sublayer` takes each write alone, `block` all writes of a block together, `head`
            each attention head alone.
        sites: Names or globs of writes (``blocks.*.mlp_out``) to restrict it to.
        groups: Groups of layers, each ablated as a whole; `level` and `sites` are not used then.
        per_token: Keep the effect on every token's loss as well.
        memory: Bytes that it may take beside the model; half of what is free if None.
        seed: Of the bootstrap and of the resampling.
        journal: Where finished parts are kept, to go on after an interruption.
        progress: Called with what is done and what there is to do, in layer-tokens.

    Raises:
        UnsupportedModelError: The model does not predict tokens, or its heads can't be told apart.
        UnknownSiteError: A name fits no write.
        TextError: The text can't be used, or has too few sequences for this `kind`.
        ConfigError: An unknown option, or too little memory.
    """
    model.require_language_model("ablate")
    corpus = read_corpus(model, texts, seed=seed)
    targets = choose_targets(model, level=level, sites=sites, groups=groups)
    sweep = AblationSweep(model, corpus, targets, kind=kind, seed=seed, memory=memory)
    measured = sweep.run(per_token=per_token, journal=journal, progress=progress)
    sums = np.array([losses.sum() for losses in measured.base])
    return AblationResult(
        provenance=provenance_of(model, corpus.description, corpus.hash, seed=seed),
        model=model.name,
        text=corpus.description,
        base_loss=float(sums.sum() / corpus.n_predicted),
        effects=tuple(
            _effect(target, kind, index, measured, corpus, seed)
            for index, target in enumerate(targets)
        ),
        by_token=_by_token(measured) if per_token else None,
        layer_tokens=measured.layer_tokens,
        warnings=tuple(few(len(set(corpus.documents)), "documents")),
    )


@dataclass(slots=True)
class Measured:
    """Losses by sequence: token by token, or summed up to one number, in nats."""

    base: list[Float[np.ndarray, " predicted"]]
    effects: list[Float[np.ndarray, "target predicted"]]
    """Change of the loss."""
    layer_tokens: int = 0
    """Positions that went through a block."""


class AblationSweep:
    """All ablations over a corpus, ready to be planned and run.

    Args:
        model: A causal language model.
        corpus: What it reads.
        targets: What is ablated.
        kind: What takes its place.
        seed: Of the resampling.
        memory: Bytes that it may take beside the model; half of what is free if None.
    """

    def __init__(
        self,
        model: StreamModel,
        corpus: Corpus,
        targets: Sequence[Target],
        *,
        kind: Kind,
        seed: int = 0,
        memory: int | None = None,
    ) -> None:
        self._model, self._corpus, self._targets = model, corpus, targets
        self._kind: Kind = kind
        self._seed = seed
        self._memory = memory or free_memory(model.device)
        most = _BATCH_TOKENS
        if kind == "resample":  # another sequence must be in the batch
            most = max(most, 2 * max(map(len, corpus.sequences)))
        self._batches = list(corpus.batches(most))
        if kind != "mean":  # the means are not known yet; the others are refused before the work
            for batch in self._batches:
                make_variants(targets, kind, len(batch.rows), {}, seed)

    def plan(self) -> WalkPlan:
        """How much there is to do."""
        variants = make_variants(self._targets, "zero", 1, {}, 0)
        shapes = [_shape(batch) for batch in self._batches]
        return plan_walks(self._model, variants, shapes, self._memory)

    def estimate_seconds(self) -> float:
        """How long it will take on this machine."""
        longest = max(map(len, self._corpus.sequences))
        return estimate_seconds(self._model, self.plan(), self._corpus.n_tokens, longest)

    def run(
        self,
        *,
        per_token: bool = False,
        journal: Journal | None = None,
        progress: Progress | None = None,
    ) -> Measured:
        """Run it, keeping finished parts in `journal`."""
        if journal is not None:
            self._memory = journal.settle(self._settings(per_token), self._memory)
        passes = self._model.spec.n_layers * self._corpus.n_tokens * (self._kind == "mean")
        total = self.plan().layer_tokens + passes
        size = len(self._corpus.sequences)
        measured = Measured([np.empty(0)] * size, [np.empty((0, 0))] * size)

        def count(tokens: int) -> None:
            measured.layer_tokens += tokens
            if progress is not None:
                progress(min(measured.layer_tokens, total), total)

        with torch.no_grad(), fast_activations(self._model.module):
            self._run_batches(measured, journal, count, per_token=per_token)
        if progress is not None:
            progress(total, total)
        return measured

    def _run_batches(
        self,
        measured: Measured,
        journal: Journal | None,
        count: Callable[[int], None],
        *,
        per_token: bool,
    ) -> None:
        means: Means = {}
        if self._kind == "mean":
            means = mean_values(self._model, self._batches, self._targets, count)
        for number, batch in enumerate(self._batches):
            losses = self._run_batch(number, batch, means, journal, count, per_token=per_token)
            for row, own in zip(batch.rows, losses.swapaxes(0, 1), strict=True):
                measured.base[row], measured.effects[row] = own[BASE], own[:BASE] - own[BASE]

    def _run_batch(
        self,
        number: int,
        batch: Batch,
        means: Means,
        journal: Journal | None,
        count: Callable[[int], None],
        *,
        per_token: bool,
    ) -> Float[np.ndarray, "variant_and_base sequence predicted"]:
        variants = make_variants(self._targets, self._kind, len(batch.rows), means, self._seed)
        tokens = batch.tokens
        walk = Walk(self._model, tokens, rows_at_once(tokens.numel()), count)
        together = most_together(self._model, _shape(batch), self._memory)
        groups = group_variants(variants, together)
        shape = (len(tokens), tokens.shape[1] - 1 if per_token else 1)
        losses = np.empty((len(variants) + 1, *shape))  # the base comes last, at `BASE`
        for part, keep in enumerate(keeps_for(variants, groups)):
            chosen = [*groups[part], *([BASE] if keep is None else [])]
            key = f"batch{number}.part{part}"
            found = None if journal is None else journal.get(key)
            if found is None or found.shape != (len(chosen), *shape):
                found = np.empty((len(chosen), *shape))
                own = {index: variants[index] for index in groups[part]}
                for index, stream in walk.run(own, keep=keep, with_base=keep is None):
                    values = stream_losses(self._model, stream, tokens).double().cpu().numpy()
                    place = chosen.index(index)
                    found[place] = values if per_token else values.sum(-1, keepdims=True)
                if journal is not None:
                    journal.put(key, found)
            losses[chosen] = found
        return losses

    def _settings(self, per_token: bool) -> dict[str, object]:
        """What a begun sweep must share with the one that goes on with it."""
        labels = [(target.sites, target.head) for target in self._targets]
        return {
            "model": self._model.weights_hash,
            "text": self._corpus.hash,
            "targets": hashlib.sha256(repr(labels).encode()).hexdigest()[:16],
            "kind": self._kind,
            "seed": self._seed,
            "per_token": per_token,
        }


def _shape(batch: Batch) -> tuple[int, int]:
    return batch.tokens.shape[0], batch.tokens.shape[1]


def _by_token(measured: Measured) -> TokenEffects:
    longest = max(len(losses) for losses in measured.base)

    def padded(values: np.ndarray) -> np.ndarray:
        missing = longest - values.shape[-1]
        widths = [(0, 0)] * (values.ndim - 1) + [(0, missing)]
        return np.pad(values, widths, constant_values=np.nan)

    return TokenEffects(
        base=np.stack([padded(losses) for losses in measured.base]),
        effects=np.stack([padded(losses) for losses in measured.effects], axis=1),
    )


def _effect(
    target: Target, kind: str, index: int, measured: Measured, corpus: Corpus, seed: int
) -> AblationEffect:
    row = np.array([effects[index].sum() for effects in measured.effects])
    lengths = np.array([len(sequence) - 1 for sequence in corpus.sequences])
    sums, counts = by_document(row, lengths, np.array(corpus.documents))
    return AblationEffect(
        layer=target.layers[0],
        write=target.name,
        kind=kind,
        effect=float(row.sum() / lengths.sum()),
        ci=bootstrap_interval(sums, counts, seed=seed),
        n_tokens=int(lengths.sum()),
        layers=target.layers,
        head=target.head,
    )
