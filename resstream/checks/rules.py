"""The first rules of `resstream check`: who is suspected, what is tried, and what it proves.

Each rule has a stable code.  It names suspects from passive readings (a robust z-score against the
model's own neighbours together with an absolute size), says which experiments decide, and turns
their outcome into a finding, or clears the suspect.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from resstream.analysis.intervals import holm
from resstream.checks.experiments import Lab, Outcome, Trial, clip_channel
from resstream.checks.readings import Readings
from resstream.checks.report import Evidence, Finding, Severity, Status
from resstream.sweep.variants import scale, zero

LARGE_RATIO, FAINT_RATIO = 2.5, 0.02
"""A write this many times its neighbours' size, or this small a part of it, may be suspected."""
UNUSUAL_Z = 3.0
"""Robust z-score from which a write stands out; low, because an experiment has the last word."""
LARGE_SHARE = 0.3
"""Part of the squared norm in one channel from which it may be suspected."""
IDLE_NATS = 0.01
"""An ablation whose interval lies within this of 0 changes nothing."""
HARM_NATS = 0.003
"""A repair must lower the loss by at least this."""
_UNDECIDED_NATS = 0.02
_CANDIDATES, _TRIED = 8, 4
_ALPHA = 0.05
_DECISIVE = 5.0
_NEGLIGIBLE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """One write that a rule wants to try."""

    code: str
    index: int
    """Row of the write."""
    trials: tuple[Trial, ...]
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What became of a suspect."""

    finding: Finding | None
    repair: Outcome | None = None
    """The trial that undoes the fault, if it was confirmed and pollutes the stream."""


def suspects_of_size(readings: Readings) -> list[Suspect]:
    """RS201: a write many times as large as its neighbours'."""
    found = np.flatnonzero((readings.norm_z > UNUSUAL_Z) & (readings.ratio > LARGE_RATIO))
    return [
        Suspect(
            code="RS201",
            index=int(i),
            trials=(_trial(readings, i, "rescale", scale(float(1 / readings.ratio[i]))),),
            evidence=_size_evidence(readings, int(i), LARGE_RATIO),
        )
        for i in found
    ]


def suspects_of_channel(readings: Readings) -> list[Suspect]:
    """RS202: a write that goes into one channel, unlike its neighbours'."""
    found = np.flatnonzero((readings.share_z > UNUSUAL_Z) & (readings.channel_share > LARGE_SHARE))
    suspects: list[Suspect] = []
    for i in map(int, found):
        channel = int(readings.channel[i])
        share = Evidence(
            name=f"share of channel {channel} in the squared norm of the write",
            value=float(readings.channel_share[i]), threshold=LARGE_SHARE, ci=None,
        )  # fmt: skip
        unusual = Evidence(
            name="robust z-score of that share among its neighbours",
            value=float(readings.share_z[i]), threshold=UNUSUAL_Z, ci=None,
        )  # fmt: skip
        trial = _trial(readings, i, f"clip channel {channel}", clip_channel(channel))
        suspects.append(Suspect(code="RS202", index=i, trials=(trial,), evidence=(share, unusual)))
    return suspects


def suspects_of_harm(readings: Readings, estimates: Float[np.ndarray, " write"]) -> list[Suspect]:
    """RS203: the writes that the model seems to be better off without, by first-order estimate."""
    order = [int(i) for i in np.argsort(estimates) if np.isfinite(estimates[i])][:_CANDIDATES]
    return [
        Suspect(
            code="RS203",
            index=i,
            trials=(
                _trial(readings, i, "zero", zero),
                _trial(readings, i, "flip the sign", scale(-1.0)),
            ),
            evidence=(
                Evidence(
                    name="first-order estimate of its zero ablation, nats per token",
                    value=float(estimates[i]),
                    threshold=None,
                    ci=None,
                ),
            ),
        )
        for i in order
    ]


def suspects_of_collapse(readings: Readings) -> list[Suspect]:
    """RS101 and RS102: a write that is zero, or next to nothing beside its neighbours'."""
    quiet = (readings.norm_z < -UNUSUAL_Z) & (readings.ratio < FAINT_RATIO)
    return [
        Suspect(
            code="RS101" if readings.write_norm[i] == 0 else "RS102",
            index=int(i),
            trials=(_trial(readings, i, "zero", zero),),
            evidence=_size_evidence(readings, int(i), FAINT_RATIO),
        )
        for i in np.flatnonzero(quiet)
    ]


def _trial(readings: Readings, index: int | np.integer, label: str, change: object) -> Trial:
    return Trial(write=readings.writes[int(index)], label=label, change=change)  # pyright: ignore[reportArgumentType]


def _size_evidence(readings: Readings, index: int, threshold: float) -> tuple[Evidence, ...]:
    return (
        Evidence(
            name="write norm over the median of its neighbours",
            value=float(readings.ratio[index]), threshold=threshold, ci=None,
        ),
        Evidence(
            name="robust z-score of log(write norm) among its neighbours",
            value=float(readings.norm_z[index]),
            threshold=math.copysign(UNUSUAL_Z, readings.norm_z[index]), ci=None,
        ),
        Evidence(
            name="write norm over stream norm (median)",
            value=float(readings.relative_norm[index]), threshold=None, ci=None,
        ),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round of trials."""

    decided: tuple[tuple[Suspect, Decision], ...]
    harmful: frozenset[int]
    """Rows of all writes that a first glance saw do harm."""


def decide_pollution(suspects: Sequence[Suspect], readings: Readings, lab: Lab) -> Round:
    """Try the suspects of RS201, RS202 and RS203, corrected for the number of tests (Holm).

    A first glance at a few sequences clears those whose repair does harm.  The few whose repair
    helps most are tried on the whole text, with all of their repairs, of which the best counts: the
    culprit is among them, and the others may be its victims.
    """
    glances = lab.glance([suspect.trials[0] for suspect in suspects]) if suspects else []
    seen = sorted(zip(suspects, glances, strict=True), key=lambda pair: pair[1].effect)
    if lab.informative:
        left = [suspect for suspect, glance in seen if glance.effect <= _UNDECIDED_NATS][:_TRIED]
    else:
        left = [suspect for suspect, _ in seen if suspect.code != "RS203"]
    trials = [trial for suspect in left for trial in suspect.trials]
    outcomes = iter(lab.run(trials) if trials else ())
    best = [min((next(outcomes) for _ in s.trials), key=lambda o: o.effect) for s in left]
    # The estimates looked at every write, so that many tests were made, not only those that ran.
    p_values = np.ones(max(len(readings.writes), len(suspects)))
    p_values[: len(best)] = [outcome.p_better for outcome in best]
    decided = tuple(
        (suspect, _decide_one(suspect, outcome, float(p), readings, lab))
        for suspect, outcome, p in zip(left, best, holm(p_values), strict=False)
    )
    harmful = frozenset(s.index for s, glance in seen if glance.effect < -HARM_NATS)
    return Round(decided=decided, harmful=harmful)


def _decide_one(
    suspect: Suspect, outcome: Outcome, p: float, readings: Readings, lab: Lab
) -> Decision:
    if not lab.informative:
        return _decide_by_divergence(suspect, outcome, readings, lab)
    evidence = (*suspect.evidence, _effect_evidence(outcome, -HARM_NATS))
    if outcome.high < 0 and outcome.effect < -HARM_NATS and p < _ALPHA:
        statement = _statement(suspect, outcome, readings)
        return Decision(finding=_finding(suspect, readings, evidence, statement), repair=outcome)
    if outcome.effect < -_UNDECIDED_NATS:
        return Decision(finding=_undecided(suspect, outcome, readings, evidence))
    return Decision(finding=None)


def _decide_by_divergence(
    suspect: Suspect, outcome: Outcome, readings: Readings, lab: Lab
) -> Decision:
    """Without a loss: bringing it down to size changes the output far more than neighbours do."""
    usual = _usual_divergence(suspect.index, readings, lab)
    evidence = (
        *suspect.evidence,
        _effect_evidence(outcome, _DECISIVE * usual),
        Evidence(
            name="KL of zero-ablating a neighbour (median), nats per token",
            value=usual, threshold=None, ci=None,
        ),
    )  # fmt: skip
    if outcome.low > _DECISIVE * usual:
        statement = _statement(suspect, outcome, readings)
        return Decision(finding=_finding(suspect, readings, evidence, statement), repair=outcome)
    return Decision(finding=None)


def _usual_divergence(index: int, readings: Readings, lab: Lab) -> float:
    near = readings.neighbours(index)[:4]
    outcomes = lab.run([_trial(readings, row, "zero", zero) for row in near])
    return float(np.median([outcome.effect for outcome in outcomes]))


def decide_collapse(suspects: Sequence[Suspect], readings: Readings, lab: Lab) -> list[Finding]:
    """Try the suspects of RS101 and RS102: taking away what is hardly there must change nothing."""
    outcomes = lab.run([suspect.trials[0] for suspect in suspects]) if suspects else []
    findings: list[Finding] = []
    for suspect, outcome in zip(suspects, outcomes, strict=True):
        limit = IDLE_NATS
        if not lab.informative:
            limit = _NEGLIGIBLE * _usual_divergence(suspect.index, readings, lab)
        evidence = (*suspect.evidence, _effect_evidence(outcome, limit))
        if -limit <= outcome.low and outcome.high <= limit:
            statement = _statement(suspect, outcome, readings)
            findings.append(_finding(suspect, readings, evidence, statement))
        elif not abs(outcome.effect) > limit:
            findings.append(_undecided(suspect, outcome, readings, evidence))
    return findings


def _effect_evidence(outcome: Outcome, threshold: float) -> Evidence:
    what = "change of the loss" if outcome.experiment.measure == "loss" else "KL from the clean run"
    return Evidence(
        name=f"{what} on '{outcome.trial.label}', nats per token",
        value=outcome.effect, threshold=threshold, ci=outcome.experiment.ci,
    )  # fmt: skip


_SEVERITY: dict[str, Severity] = {
    "RS101": "error", "RS102": "warning", "RS201": "error", "RS202": "error", "RS203": "error",
}  # fmt: skip

_REMEDY = {
    "RS101": "restore the output matrix (or the gain, or the gate) from an earlier checkpoint; "
    "a block that writes nothing can also be removed",
    "RS102": "rescale the output matrix or the norm's gain to its neighbours' size, or restore the "
    "layer from an earlier checkpoint",
    "RS201": "divide the output matrix by the ratio above, or restore the layer from an earlier "
    "checkpoint; in training, a LayerScale or a smaller learning rate for this layer",
    "RS202": "restore the row of this channel in the output matrix from an earlier checkpoint, or "
    "scale it down to the others'",
    "RS203": "restore the layer from an earlier checkpoint, or remove the write",
}


def _finding(
    suspect: Suspect,
    readings: Readings,
    evidence: tuple[Evidence, ...],
    statement: str,
    status: Status = "confirmed",
) -> Finding:
    write = readings.writes[suspect.index]
    return Finding(
        code=suspect.code,
        status=status,
        severity=_SEVERITY[suspect.code],
        layer=write.layer,
        write=write.name,
        site=write.site,
        statement=statement,
        evidence=evidence,
        remedy=_REMEDY[suspect.code],
    )


def _statement(suspect: Suspect, outcome: Outcome, readings: Readings) -> str:
    write, ratio = readings.writes[suspect.index], float(readings.ratio[suspect.index])
    gain = (
        f"{outcome.trial.label} lowers the loss by {-outcome.effect:.3g} nats per token"
        if outcome.experiment.measure == "loss"
        else f"{outcome.trial.label} changes the output by {outcome.effect:.3g} nats (KL)"
    )
    match suspect.code:
        case "RS101":
            return f"{write.label} is collapsed: it writes exactly nothing"
        case "RS102":
            return (
                f"{write.label} is collapsed: its write is {ratio:.2g} of its neighbours' size and "
                "changes nothing"
            )
        case "RS201":
            return (
                f"{write.label} pollutes the stream: its write is {ratio:.3g} times its "
                f"neighbours' size; {gain}"
            )
        case "RS202":
            return f"{write.label} pollutes one channel of the stream; {gain}"
        case _:
            return f"{write.label} harms the model: {gain}"


def _undecided(
    suspect: Suspect, outcome: Outcome, readings: Readings, evidence: tuple[Evidence, ...]
) -> Finding:
    """Not enough text to tell; the interval shrinks with the root of the number of tokens."""
    width = (outcome.high - outcome.low) / 2
    wanted = max(abs(outcome.effect), IDLE_NATS) / 2
    have = outcome.experiment.n_tokens
    factor = (width / wanted) ** 2 if math.isfinite(width) else 4.0
    need = math.ceil(have * max(2.0, factor))
    label = readings.writes[suspect.index].label
    statement = (
        f"{label} is suspect, but {have} tokens are too few to tell; about {need} are needed"
    )
    return _finding(suspect, readings, evidence, statement, status="abstained")
