"""Causal tests: change one write, run the same tokens, and see what it does to the output.

Where the loss says something (the model predicts better than chance) the effect is the change of
the cross-entropy.  Where it says nothing (an untrained model, random tokens) it is the divergence
of the next-token distribution.  Edits that stand (culprits already found and repaired) stay in
force, so that a victim of theirs is seen as it would be without them.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from resstream.analysis.intervals import bootstrap_interval, by_document, p_below_zero
from resstream.analysis.losses import summed_divergences, summed_losses
from resstream.checks.report import Experiment
from resstream.stream.model import StreamModel
from resstream.stream.spec import WriteSpec
from resstream.stream.substitution import substituted
from resstream.stream.texts import Batch, Corpus
from resstream.sweep.patches import is_last_word
from resstream.sweep.replay import BaseRun, run_base
from resstream.sweep.variants import Change, Edit

_BATCH_TOKENS = 1024
_GLANCE_SEQUENCES = 4
_SCREEN_SEQUENCES, _SCREEN_TOKENS = 2, 128
_ENOUGH_FOR_RANKS = 12
_BETTER_THAN_CHANCE = 0.9
"""Share of log(d_vocab) that the loss must stay below to say something."""


Measure = Literal["loss", "divergence"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A change that is to be tried: of what one or more writes add, or of weights."""

    write: WriteSpec
    """The write that it is about."""
    label: str
    change: Change | None = None
    """What takes the place of the write."""
    also: tuple[WriteSpec, ...] = ()
    """Other writes that are changed in the same way."""
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    """Parameters that stand in for the model's own."""
    first_layer: int | None = None
    """The first block that differs, where it is not the write's own."""

    @property
    def edits(self) -> tuple[Edit, ...]:
        """The changed writes as edits of their sites."""
        if self.change is None:
            return ()
        return tuple(Edit(write.site, self.change) for write in (self.write, *self.also))

    @property
    def start(self) -> int:
        """The first block that has to be run again."""
        if self.first_layer is not None:
            return self.first_layer
        return min(write.layer for write in (self.write, *self.also))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a trial did."""

    trial: Trial
    experiment: Experiment
    p_better: float
    """p-value that the loss does not fall (one-sided, over documents)."""

    @property
    def effect(self) -> float:
        """Nats per token."""
        return self.experiment.effect

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.experiment.ci[0]

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.experiment.ci[1]


@dataclass
class Lab:
    """A model, a text, and the repairs that stand."""

    model: StreamModel
    corpus: Corpus
    seed: int
    standing: list[Trial] = field(default_factory=list)
    done: list[Outcome] = field(default_factory=list)
    base_loss: float = math.nan
    _heard: Float[np.ndarray, " sequence"] = field(init=False)
    """Clean loss of each sequence, summed over its tokens."""
    informative: bool = False
    """True if the loss says something about the model."""
    has_nan: bool = False
    """True if the model's output holds NaN."""

    def __post_init__(self) -> None:
        self._heard = np.zeros(len(self.corpus.sequences))

    @property
    def readable(self) -> bool:
        """True if there is a loss at all: the model predicts the next token of a real text."""
        return self.model.spec.causal and not self.corpus.random

    @property
    def measure(self) -> Measure:
        """What effects are measured by."""
        return "loss" if self.informative else "divergence"

    @torch.no_grad()
    def hear(self, batch: Batch, stream: Tensor) -> None:
        """Take the clean loss of a batch from its last stream, which the recorder hands over.

        A few rows at a time: the logits of a batch that the recorder likes may be gigabytes.
        """
        step = max(1, _BATCH_TOKENS // stream.shape[1])
        heard: list[np.ndarray] = []
        for rows, tokens in zip(stream.split(step), batch.tokens.split(step), strict=True):
            logits = self.model.readout(rows)
            self.has_nan = self.has_nan or bool(logits.sum().isnan())  # NaN spreads
            if self.model.spec.causal:
                heard.append(summed_losses(logits, tokens))
        if heard:
            self._heard[list(batch.rows)] = np.concatenate(heard)

    def settle_base(self) -> None:
        """See whether the clean loss says something, once all batches were heard."""
        if self.model.spec.causal:
            self.base_loss = float(self._heard.sum()) / self.corpus.n_predicted
            self._judge(self.base_loss)

    @property
    def chance(self) -> float:
        """Loss of a model that guesses, in nats per token."""
        return math.log(self.model.spec.d_vocab or 2)

    def _judge(self, loss: float) -> None:
        if self.readable and loss < _BETTER_THAN_CHANCE * self.chance:
            self.informative = True

    @contextmanager
    def repaired(self) -> Iterator[None]:
        """The model as it is with the standing repairs."""
        edits = [edit for trial in self.standing for edit in trial.edits]
        weights = {name: value for trial in self.standing for name, value in trial.weights.items()}
        with (
            substituted(self.model.module, weights),
            self.model.hooked({edit.site: _as_hook(edit) for edit in edits}),
        ):
            yield

    def run(self, trials: Sequence[Trial]) -> list[Outcome]:
        """Run trials on the whole text; each starts from the base run at its layer."""
        outcomes = self._run(trials, self.corpus, self.measure)
        self.done += outcomes
        return outcomes

    def glance(self, trials: Sequence[Trial]) -> list[Outcome]:
        """Run trials on the first few sequences: enough to see which are not worth more.

        A fault may have cost a trained model all it knew.  If it predicts better than chance with
        one of the repairs, the loss is what decides from here on.
        """
        measure: Measure = "loss" if self.readable else "divergence"
        part = self.corpus.head(_GLANCE_SEQUENCES)
        outcomes = self._run(trials, part, measure)
        if measure == "loss":
            clean = float(self._heard[: len(part.sequences)].sum()) / part.n_predicted
            for outcome in outcomes:
                self._judge(clean + outcome.effect)
        return outcomes

    def screen(self, trials: Sequence[Trial]) -> Float[np.ndarray, " trial"]:
        """Effects on the loss of a few hundred tokens: enough to rank, for every write there is."""
        few = self.corpus.head(_SCREEN_SEQUENCES)
        short = tuple(sequence[:_SCREEN_TOKENS] for sequence in few.sequences)
        part = Corpus(sequences=short, documents=few.documents, description=few.description)
        return np.array([outcome.effect for outcome in self._run(trials, part, "loss")])

    def _run(self, trials: Sequence[Trial], corpus: Corpus, measure: Measure) -> list[Outcome]:
        effects = np.zeros((len(trials), len(corpus.sequences)))
        sites = sorted({edit.site for trial in trials for edit in trial.edits})
        for batch in corpus.batches(_BATCH_TOKENS):
            rows = list(batch.rows)
            with self.repaired():
                base = run_base(self.model, batch.tokens, sites)
                clean = summed_losses(base.logits, base.tokens) if measure == "loss" else None
                for index, trial in enumerate(trials):
                    changed = self._changed(base, trial)
                    if clean is None:
                        effects[index, rows] = summed_divergences(base.logits, changed)
                    else:
                        effects[index, rows] = summed_losses(changed, base.tokens) - clean
        return [
            self._outcome(trial, row, corpus, measure)
            for trial, row in zip(trials, effects, strict=True)
        ]

    @torch.no_grad()
    def _changed(self, base: BaseRun, trial: Trial) -> Tensor:
        """Logits with the change, from the base run's stream before the first changed block."""

        def changing(edit: Edit) -> Callable[[Tensor], Tensor]:
            return lambda value: edit.change(value, base.values[edit.site])

        start = trial.start
        stream = base.streams[start]
        hooks = {edit.site: changing(edit) for edit in trial.edits}
        if self._adds_last(trial):
            # What else its block adds is known, so that the block need not run.
            (edit,) = trial.edits
            own = base.values[edit.site]
            start, stream = start + 1, base.streams[start + 1] + (edit.change(own, own) - own)
            hooks = {}
        with substituted(self.model.module, trial.weights), self.model.hooked(hooks):
            for layer in range(start, self.model.spec.n_layers):
                stream = self.model.run_block(layer, stream, base.frame)
            return self.model.readout(stream)

    def _adds_last(self, trial: Trial) -> bool:
        """True if the trial changes one write that nothing else of its block reads."""
        write = trial.write
        alone = len(trial.edits) == 1 and not trial.weights and trial.first_layer is None
        # A standing repair may change the same write, and has been heard already.
        repaired = any(edit.site == write.site for kept in self.standing for edit in kept.edits)
        block = self.model.spec.blocks[write.layer]
        return alone and not repaired and is_last_word(block, write.site)

    def _outcome(
        self, trial: Trial, row: Float[np.ndarray, " sequence"], corpus: Corpus, measure: Measure
    ) -> Outcome:
        counts = np.array([len(sequence) - 1 for sequence in corpus.sequences])
        sums, tokens = by_document(row, counts, np.array(corpus.documents))
        experiment = Experiment(
            layer=trial.write.layer,
            write=trial.write.name,
            change=trial.label,
            measure=measure,
            effect=float(row.sum() / counts.sum()),
            ci=bootstrap_interval(sums, tokens, seed=self.seed),
            n_tokens=int(counts.sum()),
        )
        return Outcome(trial=trial, experiment=experiment, p_better=_p_better(sums / tokens))


def _p_better(means: Float[np.ndarray, " document"]) -> float:
    """Signed ranks (Wilcoxon 1945) where there are enough documents for them, else a t-test.

    A repair that helps every document, but a few of them very much, has a wide spread, which a
    t-test takes for doubt.
    """
    if len(means) < _ENOUGH_FOR_RANKS or not np.isfinite(means).all() or not means.any():
        return p_below_zero(means)
    from scipy.stats import wilcoxon

    test: Any = wilcoxon(means, alternative="less")
    return float(test.pvalue)


def _as_hook(edit: Edit) -> Callable[[Tensor], Tensor]:
    return lambda value: edit.change(value, value)


def clip_channel(channel: int) -> Change:
    """Bring one channel of the write down to the size of the others, token by token."""

    def change(value: Tensor, base: Tensor) -> Tensor:
        del base
        width = value.shape[-1]
        own = value[..., channel]
        rest = (value.square().sum(-1) - own.square()).clamp_min(0) / max(1, width - 1)
        clipped = value.clone()
        clipped[..., channel] = own.clamp(-rest.sqrt(), rest.sqrt())
        return clipped

    return change
