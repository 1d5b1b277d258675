"""Numbers for and against a suspect, and the sentences that rules share."""

import math

from resstream.checks.experiments import Outcome, Trial
from resstream.checks.readings import Readings
from resstream.checks.report import Evidence
from resstream.sweep.variants import Change

UNUSUAL_Z = 3.0
"""Robust z-score from which a write stands out; low, because an experiment has the last word."""
IDLE_NATS = 0.01
"""An ablation whose interval lies within this of 0 changes nothing."""
HARM_NATS = 0.003
"""A repair must lower the loss by at least this."""


def change_trial(readings: Readings, index: int, label: str, change: Change) -> Trial:
    """A trial that changes what one write adds."""
    return Trial(write=readings.writes[index], label=label, change=change)


def plain(name: str, value: float, threshold: float | None = None) -> Evidence:
    """A number without an interval."""
    return Evidence(name=name, value=float(value), threshold=threshold, ci=None)


def size_evidence(readings: Readings, index: int, threshold: float) -> tuple[Evidence, ...]:
    """How large a write is beside its neighbours and beside the stream."""
    return (
        plain("write norm over the median of its neighbours", readings.ratio[index], threshold),
        plain(
            "robust z-score of log(write norm) among its neighbours",
            readings.norm_z[index],
            math.copysign(UNUSUAL_Z, readings.norm_z[index]),
        ),
        plain("write norm over stream norm (median)", readings.relative_norm[index]),
    )


def effect_evidence(outcome: Outcome, threshold: float) -> Evidence:
    """What a trial did, with its interval."""
    what = "change of the loss" if outcome.experiment.measure == "loss" else "KL from the clean run"
    return Evidence(
        name=f"{what} on '{outcome.trial.label}', nats per token",
        value=outcome.effect,
        threshold=threshold,
        ci=outcome.experiment.ci,
    )


def gain_of(outcome: Outcome) -> str:
    """What a repair brings, as the second half of a statement."""
    if outcome.experiment.measure == "loss":
        lower = f"lowers the loss by {-outcome.effect:.3g} nats per token"
        return f"the test '{outcome.trial.label}' {lower}"
    return f"the test '{outcome.trial.label}' changes the output by {outcome.effect:.3g} nats (KL)"
