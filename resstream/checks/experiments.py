"""Causal tests: change one write, run the same tokens, and see what it does to the output.

Where the loss says something (the model predicts better than chance) the effect is the change of
the cross-entropy.  Where it says nothing (an untrained model, random tokens) it is the divergence
of the next-token distribution.  Edits that stand (culprits already found and repaired) stay in
force, so that a victim of theirs is seen as it would be without them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from resstream.analysis.intervals import bootstrap_interval, by_document, p_below_zero
from resstream.analysis.losses import token_divergences, token_losses
from resstream.checks.report import Experiment
from resstream.stream.model import StreamModel
from resstream.stream.spec import WriteSpec
from resstream.stream.texts import Corpus
from resstream.sweep.replay import run_variants
from resstream.sweep.variants import Change, Edit, Variant

_BATCH_TOKENS = 1024
_GLANCE_SEQUENCES = 4
_BETTER_THAN_CHANCE = 0.9
"""Share of log(d_vocab) that the loss must stay below to say something."""


Measure = Literal["loss", "divergence"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A change of one write that is to be tried."""

    write: WriteSpec
    label: str
    change: Change

    @property
    def edit(self) -> Edit:
        """The same as an edit of its site."""
        return Edit(self.write.site, self.change)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a trial did."""

    trial: Trial
    experiment: Experiment
    p_better: float
    """p-value that the loss does not fall (one-sided t-test over documents)."""

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
    standing: list[Edit] = field(default_factory=list)
    done: list[Outcome] = field(default_factory=list)
    base_loss: float = math.nan
    informative: bool = False
    """True if the loss says something about the model."""
    has_nan: bool = False
    """True if the model's output holds NaN."""

    @property
    def readable(self) -> bool:
        """True if there is a loss at all: the model predicts the next token of a real text."""
        return self.model.spec.causal and not self.corpus.random

    @property
    def measure(self) -> Measure:
        """What effects are measured by."""
        return "loss" if self.informative else "divergence"

    def measure_base(self) -> None:
        """Measure the clean loss and see whether it says something."""
        total = 0.0
        with torch.no_grad():
            for batch in self.corpus.batches(_BATCH_TOKENS):
                logits = self.model.forward(batch.tokens)
                self.has_nan = self.has_nan or bool(logits.isnan().any())
                if self.model.spec.causal:
                    total += float(token_losses(logits, batch.tokens).double().sum())
        if self.model.spec.causal:
            self.base_loss = total / self.corpus.n_predicted
            self._judge(self.base_loss)

    def _judge(self, loss: float) -> None:
        chance = math.log(self.model.spec.d_vocab or 2)
        if self.readable and loss < _BETTER_THAN_CHANCE * chance:
            self.informative = True

    def hooks(self) -> dict[str, Callable[[Tensor], Tensor]]:
        """The standing edits as hooks."""
        return {edit.site: _as_hook(edit) for edit in self.standing}

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
        outcomes = self._run(trials, self.corpus.head(_GLANCE_SEQUENCES), measure)
        if measure == "loss":
            for outcome in outcomes:
                self._judge(self.base_loss + outcome.effect)
        return outcomes

    def _run(self, trials: Sequence[Trial], corpus: Corpus, measure: Measure) -> list[Outcome]:
        effects = np.zeros((len(trials), len(corpus.sequences)))
        variants = [Variant(trial.label, (trial.edit,)) for trial in trials]
        for batch in corpus.batches(_BATCH_TOKENS):
            rows = list(batch.rows)
            with self.model.hooked(self.hooks()):
                for index, (clean, changed) in enumerate(
                    run_variants(self.model, batch.tokens, variants)
                ):
                    effects[index, rows] = _effect(clean, changed, batch.tokens, measure)
        return [
            self._outcome(trial, row, corpus, measure)
            for trial, row in zip(trials, effects, strict=True)
        ]

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
        return Outcome(trial=trial, experiment=experiment, p_better=p_below_zero(sums / tokens))


def _effect(
    clean: Tensor, changed: Tensor, tokens: Tensor, measure: Measure
) -> Float[np.ndarray, " row"]:
    if measure == "loss":
        effect = token_losses(changed, tokens).double() - token_losses(clean, tokens).double()
    else:
        effect = token_divergences(clean, changed).double()[:, 1:]
    return effect.sum(-1).cpu().numpy()


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
