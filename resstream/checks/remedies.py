"""Which fix helps most?  Each is tried in memory, on tokens that did not choose it.

Candidates come from the weights alone (their neighbours' sizes), from the experiment that
confirmed the finding, or from a reference.  Every other sequence chooses, the rest measure.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float

from resstream.analysis.intervals import bootstrap_interval, by_document
from resstream.analysis.losses import sequence_losses
from resstream.checks.keys import Key, key_of
from resstream.checks.repairs import (
    Weights,
    clipped_row,
    output_weight,
    require_fix,
    scaled_gain,
    scaled_output,
)
from resstream.checks.report import Finding, RemedyTrial
from resstream.checks.weights import WeightTable
from resstream.stream.model import StreamModel
from resstream.stream.saving import save_model
from resstream.stream.spec import WriteSpec
from resstream.stream.substitution import substituted
from resstream.stream.texts import Corpus

_ENOUGH = 8
"""Sequences from which half of them are kept apart."""
_MOST_TO_CHOOSE, _MOST_TO_MEASURE = 16, 32
"""Sequences at most: more would cost time and change no choice."""
_STEPS = (0.25, 0.5, 2.0, 4.0)
"""Beside the neighbours' size, these multiples of it are tried."""
_RESIZED = ("RS102", "RS103", "RS201")
"""Rules whose advice begins with a rescaling, which is also tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A fix that could be tried."""

    label: str
    weights: Weights
    short: str = ""
    """The label without names of weights; the label itself where this is empty."""


@dataclass(kw_only=True)
class Clinic:
    """A model, its findings, and what is known to repair them."""

    model: StreamModel
    corpus: Corpus
    table: WeightTable
    known: Mapping[Key, Candidate] = field(default_factory=dict)
    """Weights that an experiment has shown to undo a finding."""
    reference: StreamModel | None = None
    weights: Weights = field(default_factory=dict)
    """The best fixes of all findings so far."""

    def treat(self, findings: Sequence[Finding]) -> list[RemedyTrial]:
        """Try the fixes of each confirmed finding, those of earlier ones in place."""
        treated: list[RemedyTrial] = []
        done: set[tuple[int | None, str | None]] = set()
        for finding in findings:
            place = (finding.layer, finding.write)
            if finding.status == "confirmed" and finding.severity != "info" and place not in done:
                treated += self._treat(finding)
                done.add(place)
        return treated

    def _treat(self, finding: Finding) -> list[RemedyTrial]:
        candidates = [c for c in candidates_for(finding, self) if c.weights]
        choosing, measuring = _halves(self.corpus)
        if not candidates:
            return []
        chosen = [_mean(self._losses(choosing, c.weights), choosing) for c in candidates]
        ranked = [candidates[int(index)] for index in np.argsort(chosen, kind="stable")]
        before = self._losses(measuring, {})
        trials = [
            self._trial(finding, candidate, before, measuring, best=index == 0)
            for index, candidate in enumerate(ranked)
        ]
        if _is_better(trials[0]):
            self.weights = self.weights | ranked[0].weights
            return trials
        return [replace(trial, best=False) for trial in trials]

    def _losses(self, corpus: Corpus, weights: Weights) -> Float[np.ndarray, " sequence"]:
        with substituted(self.model.module, self.weights | weights):
            return sequence_losses(self.model, corpus)

    def _trial(
        self,
        finding: Finding,
        candidate: Candidate,
        before: Float[np.ndarray, " sequence"],
        corpus: Corpus,
        *,
        best: bool,
    ) -> RemedyTrial:
        after = self._losses(corpus, candidate.weights)
        counts = np.array([len(sequence) - 1 for sequence in corpus.sequences])
        sums, tokens = by_document(after - before, counts, np.array(corpus.documents))
        return RemedyTrial(
            code=finding.code,
            layer=finding.layer if finding.layer is not None else -1,
            write=finding.write,
            remedy=candidate.label,
            loss_before=_mean(before, corpus),
            loss_after=_mean(after, corpus),
            change=float((after - before).sum() / counts.sum()),
            ci=bootstrap_interval(sums, tokens),
            n_tokens=int(counts.sum()),
            held_out=len(self.corpus.sequences) >= _ENOUGH,
            best=best,
            short=candidate.short or candidate.label,
            parameters=tuple(candidate.weights),
        )


def candidates_for(finding: Finding, clinic: Clinic) -> Iterator[Candidate]:
    """The fixes that apply to a finding, by its rule."""
    known = clinic.known.get(key_of(finding))
    if known is not None:
        yield known
    if clinic.reference is not None:
        yield from _from_reference(finding, clinic.model, clinic.reference)
    write = _write_of(finding, clinic.model)
    if finding.code == "RS001":
        yield from _finite(finding, clinic)
    if write is None:
        return
    if finding.code in (*_RESIZED, "RS203"):
        yield from _resized(write, clinic)
    if finding.code in ("RS201", "RS202", "RS203", "RS404"):
        yield from _clipped(write, clinic)
    if finding.code in ("RS203", "RS204", "RS402"):
        label = f"turn the sign of {write.output_matrix}"
        yield _scaled(clinic, write, -1.0, label, "x -1")
    if finding.code in ("RS107", "RS201", "RS202", "RS203", "RS204", "RS402"):
        label = f"remove the write (set {write.output_matrix} to 0)"
        yield _scaled(clinic, write, 0.0, label, "x 0 (no write)")


def _scaled(clinic: Clinic, write: WriteSpec, factor: float, label: str, short: str) -> Candidate:
    return Candidate(label=label, weights=scaled_output(clinic.model, write, factor), short=short)


def _write_of(finding: Finding, model: StreamModel) -> WriteSpec | None:
    found = [w for w in model.spec.writes if (w.layer, w.name) == (finding.layer, finding.write)]
    return found[0] if found else None


def _from_reference(
    finding: Finding, model: StreamModel, reference: StreamModel
) -> Iterator[Candidate]:
    """The reference's weights of the write, or of the whole block."""
    theirs = dict(reference.module.named_parameters())
    block = "" if finding.layer is None else f"{model.spec.blocks[finding.layer].module}."
    write = _write_of(finding, model)
    own = (f"{write.module}.", f"{write.reader}.") if write is not None else (block,)
    for label, starts in (
        (f"{write.label if write else 'the layer'}", own),
        ("the block", (block,)),
    ):
        weights = {
            name: theirs[name].data
            for name, value in model.module.named_parameters()
            if (name.startswith(starts) or (write is not None and name == write.output_matrix))
            and name.startswith(block)
            and name in theirs
            and theirs[name].shape == value.shape
            and not torch.equal(theirs[name].data.to(value), value.data)
        }
        yield Candidate(label=f"restore {label} from {reference.name}", weights=weights)
        if starts == (block,):
            return


def _finite(finding: Finding, clinic: Clinic) -> Iterator[Candidate]:
    """Values that are not finite set to zero, in the layer that is named or wherever they are."""
    weights = {
        reading.name: torch.nan_to_num(
            clinic.model.module.get_parameter(reading.name).data, nan=0.0, posinf=0.0, neginf=0.0
        )
        for reading in clinic.table.readings
        if reading.n_bad and finding.layer in (None, reading.layer)
    }
    yield Candidate(label="set weights that are not finite to 0", weights=weights)


def _resized(write: WriteSpec, clinic: Clinic) -> Iterator[Candidate]:
    """Output matrix or gain brought to the neighbours' size, and some multiples of it."""
    places = (
        (write.output_matrix, scaled_output, "output matrix", "x"),
        (f"{write.reader}.weight", scaled_gain, "gain of the norm before the write", "gain x"),
    )
    for name, scaled, what, short in places:
        reading = clinic.table.find(name)
        if reading is None or reading.layer is None or not reading.norm > 0:
            continue
        usual, _ = clinic.table.score(reading, "norm", floor=0.1)
        ratio = reading.norm / usual
        factors = [step / ratio for step in (1.0, *_STEPS)] if abs(math.log(ratio)) > 0.3 else []
        for factor in factors:
            weights = scaled(clinic.model, write, factor)
            yield Candidate(
                label=f"multiply the {what} ({name}) by {factor:.3g}",
                weights=weights,
                short=f"{short} {factor:.3g}",
            )


def _clipped(write: WriteSpec, clinic: Clinic) -> Iterator[Candidate]:
    """The largest row of the output matrix, and its largest weight, brought down."""
    own = output_weight(clinic.model, write)
    if own is None:
        return
    channel = int(torch.linalg.vector_norm(own.float(), dim=1).argmax())
    yield Candidate(
        label=f"scale the row of channel {channel} in {write.output_matrix} down to the others'",
        weights=clipped_row(clinic.model, write, channel),
        short=f"row of channel {channel} as the others",
    )


def _halves(corpus: Corpus) -> tuple[Corpus, Corpus]:
    """Sequences that choose, and those that measure; the same where there are too few."""
    if len(corpus.sequences) < _ENOUGH:
        return corpus, corpus
    choosing, measuring = corpus.every(2, first=0), corpus.every(2, first=1)
    return choosing.head(_MOST_TO_CHOOSE), measuring.head(_MOST_TO_MEASURE)


def _mean(losses: Float[np.ndarray, " sequence"], corpus: Corpus) -> float:
    value = float(losses.sum() / corpus.n_predicted)
    return value if math.isfinite(value) else math.inf


def _is_better(trial: RemedyTrial) -> bool:
    return math.isfinite(trial.loss_after) and not trial.loss_after >= trial.loss_before


def with_best_fix(findings: Sequence[Finding], trials: Sequence[RemedyTrial]) -> list[Finding]:
    """The findings with the best fix that was tried named first."""
    best = {(t.code, t.layer, t.write): t for t in trials if t.best}
    return [
        _named(f, best.get((f.code, -1 if f.layer is None else f.layer, f.write))) for f in findings
    ]


def _named(finding: Finding, trial: RemedyTrial | None) -> Finding:
    if trial is None:
        return finding
    where = "on held-out tokens" if trial.held_out else "on the same tokens"
    tried = (
        f"{trial.remedy}: the loss goes from {trial.loss_before:.4g} to {trial.loss_after:.4g} "
        f"{where}; or {_else(finding)}"
    )
    return replace(finding, remedy=tried)


def _else(finding: Finding) -> str:
    """The rule's advice, without its rescaling where rescalings have been tried and measured."""
    if finding.code not in _RESIZED:
        return finding.remedy
    return finding.remedy.partition(", or ")[2] or finding.remedy


def export_fix(model: StreamModel, weights: Weights, directory: str | Path) -> Path:
    """Write a copy of the model with `weights` in the place of its own; the model stays as it is.

    Raises:
        ConfigError: There is no fix to export.
        OutputError: The directory can't be written, or holds a checkpoint already.
        UnsupportedModelError: The module has no `save_pretrained`.
    """
    require_fix(weights)
    with substituted(model.module, weights):
        return save_model(model, directory)
