"""What became of the suspects?  Trials are run, and their intervals confirm, clear or abstain."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from resstream.analysis.intervals import holm
from resstream.checks.experiments import Lab, Outcome, Trial
from resstream.checks.proof import (
    HARM_NATS,
    IDLE_NATS,
    change_trial,
    effect_evidence,
    plain,
)
from resstream.checks.readings import Readings
from resstream.checks.registry import RULES
from resstream.checks.report import Evidence, Finding, Status
from resstream.checks.rule import Suspect
from resstream.checks.rules.rs402_untrained import redraws
from resstream.checks.scene import Scene
from resstream.sweep.variants import zero

WITHOUT_LOSS = ("RS201", "RS202")
"""Rules of pollution that can be decided where the loss says nothing."""
_UNDECIDED_NATS = 0.02
_TRIED = 4
_ALPHA = 0.05
_DECISIVE = 5.0
_NEGLIGIBLE = 0.05
_REDRAW_NATS = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What became of a suspect."""

    suspect: Suspect
    finding: Finding | None
    repair: Outcome | None = None
    """The trial that undoes the fault, if it was confirmed and pollutes the stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round of trials."""

    decided: tuple[Decision, ...]
    harmful: frozenset[int]
    """Rows of all writes that a first glance saw do harm."""


def decide_pollution(suspects: Sequence[Suspect], readings: Readings, lab: Lab) -> Round:
    """Try the suspects of pollution, corrected for the number of tests (Holm).

    A first glance at a few sequences clears those whose repair does harm.  The few writes whose
    repair helps most are tried on the whole text, with all of their repairs, of which the best
    counts: the culprit is among them, and the others may be its victims.
    """
    glances = _best_of(suspects, lab.glance, first_of="RS203")
    seen = sorted(zip(suspects, glances, strict=True), key=lambda pair: pair[1].effect)
    if lab.informative:
        hopeful = [suspect for suspect, glance in seen if glance.effect <= _UNDECIDED_NATS]
        rows = list(dict.fromkeys(suspect.index for suspect in hopeful))[:_TRIED]
        left = [suspect for suspect in hopeful if suspect.index in rows]
    else:
        left = [suspect for suspect, _ in seen if suspect.code in WITHOUT_LOSS]
    best = _best_of(left, lab.run)
    # The estimates looked at every write, so that many tests were made, not only those that ran.
    p_values = np.ones(max(len(readings.writes), len(left)))
    p_values[: len(best)] = [outcome.p_better for outcome in best]
    decided = tuple(
        _decide_one(suspect, outcome, float(p), readings, lab)
        for suspect, outcome, p in zip(left, best, holm(p_values), strict=False)
    )
    harmful = frozenset(s.index for s, glance in seen if glance.effect < -HARM_NATS)
    return Round(decided=decided, harmful=harmful)


def _best_of(
    suspects: Sequence[Suspect],
    run: Callable[[Sequence[Trial]], list[Outcome]],
    *,
    first_of: str | None = None,
) -> list[Outcome]:
    """The best outcome of each suspect's trials; a trial that several share runs once."""
    chosen = [s.trials[:1] if s.code == first_of else s.trials for s in suspects]
    unique: dict[tuple[str, str], Trial] = {}
    for trials in chosen:
        unique |= {_key(trial): trial for trial in trials}
    outcomes = run(list(unique.values())) if unique else []
    by_key = dict(zip(unique, outcomes, strict=True))
    return [min((by_key[_key(t)] for t in trials), key=lambda o: o.effect) for trials in chosen]


def _key(trial: Trial) -> tuple[str, str]:
    return trial.write.site, trial.label


def _decide_one(
    suspect: Suspect, outcome: Outcome, p: float, readings: Readings, lab: Lab
) -> Decision:
    if not lab.informative:
        return _decide_by_divergence(suspect, outcome, readings, lab)
    evidence = (*suspect.evidence, effect_evidence(outcome, -HARM_NATS))
    if outcome.high < 0 and outcome.effect < -HARM_NATS and p < _ALPHA:
        finding = make_finding(suspect, readings, evidence, suspect.statement(outcome))
        return Decision(suspect=suspect, finding=finding, repair=outcome)
    if outcome.effect < -_UNDECIDED_NATS:
        return Decision(suspect=suspect, finding=_undecided(suspect, outcome, readings, evidence))
    return Decision(suspect=suspect, finding=None)


def _decide_by_divergence(
    suspect: Suspect, outcome: Outcome, readings: Readings, lab: Lab
) -> Decision:
    """Without a loss: bringing it down to size changes the output far more than neighbours do."""
    usual = _usual_divergence(suspect.index, readings, lab)
    evidence = (
        *suspect.evidence,
        effect_evidence(outcome, _DECISIVE * usual),
        plain("KL of zero-ablating a neighbour (median), nats per token", usual),
    )
    if outcome.low > _DECISIVE * usual:
        finding = make_finding(suspect, readings, evidence, suspect.statement(outcome))
        return Decision(suspect=suspect, finding=finding, repair=outcome)
    return Decision(suspect=suspect, finding=None)


def _usual_divergence(index: int, readings: Readings, lab: Lab) -> float:
    near = readings.neighbours(index)[:4]
    outcomes = lab.run([change_trial(readings, row, "zero", zero) for row in near])
    return float(np.median([outcome.effect for outcome in outcomes]))


def decide_collapse(suspects: Sequence[Suspect], readings: Readings, lab: Lab) -> list[Finding]:
    """Try suspects of collapse: taking away what is hardly there must change nothing."""
    outcomes = lab.run([suspect.trials[0] for suspect in suspects]) if suspects else []
    findings: list[Finding] = []
    for suspect, outcome in zip(suspects, outcomes, strict=True):
        limit = IDLE_NATS
        if not lab.informative:
            limit = _NEGLIGIBLE * _usual_divergence(suspect.index, readings, lab)
        evidence = (*suspect.evidence, effect_evidence(outcome, limit))
        if -limit <= outcome.low and outcome.high <= limit:
            findings.append(make_finding(suspect, readings, evidence, suspect.statement(outcome)))
        elif not abs(outcome.effect) > limit and suspect.code in ("RS101", "RS102"):
            findings.append(_undecided(suspect, outcome, readings, evidence))
    return findings


def decide_untrained(suspects: Sequence[Suspect], scene: Scene) -> list[Finding]:
    """RS402 without harm: what was learnt can't be drawn anew, so a redraw must change nothing."""
    findings: list[Finding] = []
    for suspect in suspects:
        outcomes = scene.lab.run([suspect.trials[0], *redraws(scene, suspect.index)])
        taken, *redrawn = outcomes
        worst = max(redrawn, key=lambda outcome: abs(outcome.effect), default=None)
        if worst is None or not taken.low < _REDRAW_NATS:
            continue
        evidence = (*suspect.evidence, effect_evidence(worst, _REDRAW_NATS))
        if max(abs(worst.low), abs(worst.high)) <= _REDRAW_NATS:
            statement = suspect.statement(worst)
            findings.append(make_finding(suspect, scene.readings, evidence, statement))
    return findings


def make_finding(
    suspect: Suspect,
    readings: Readings,
    evidence: tuple[Evidence, ...],
    statement: str,
    status: Status = "confirmed",
) -> Finding:
    """A finding about the write of a suspect."""
    write, rule = readings.writes[suspect.index], RULES[suspect.code]
    return Finding(
        code=suspect.code,
        status=status,
        severity=rule.severity,
        layer=write.layer,
        write=None if suspect.whole_layer else write.name,
        site=None if suspect.whole_layer else write.site,
        statement=statement,
        evidence=evidence,
        remedy=rule.fix,
    )


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
    return make_finding(suspect, readings, evidence, statement, status="abstained")
