"""`check`: which write is collapsed, polluted or not finite, and which one is only a victim?

One pass of passive readings names suspects.  The suspects of pollution are tried together; the
repair that helps most is the culprit's and then stands, and everything is read again as it would be
without that fault: whoever looks healthy then was a victim.  Writes that look dead are tried last.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from resstream.analysis.attention import attention
from resstream.analysis.attribution import estimate_ablations
from resstream.checks.blame import BEYOND_REPAIR, weigh
from resstream.checks.configuration import remarks
from resstream.checks.decisions import (
    Round,
    decide_collapse,
    decide_pollution,
    decide_untrained,
)
from resstream.checks.experiments import Lab, Outcome, Trial
from resstream.checks.facts import weight_findings
from resstream.checks.keys import Key, key_of
from resstream.checks.proof import change_trial
from resstream.checks.readings import Readings, read
from resstream.checks.registry import RULES
from resstream.checks.report import Evidence, Finding
from resstream.checks.rule import Stage, Suspect
from resstream.checks.rules import (
    rs000_too_short,
    rs001_not_finite,
    rs205_never_recovers,
    rs301_exploding,
    rs302_stalled,
    rs303_lossy,
)
from resstream.checks.rules.rs402_untrained import DENOISING
from resstream.checks.scene import Scene
from resstream.checks.weights import WeightTable, read_model_weights
from resstream.errors import UnsupportedModelError
from resstream.recording.recorder import AtEnd, record
from resstream.recording.result import Recording
from resstream.stream.model import StreamModel
from resstream.stream.texts import Corpus
from resstream.sweep.variants import zero

Progress = Callable[[int, int], None]

_ESTIMATE_SEQUENCES = 8
"""Enough to rank candidates; the experiments that decide read everything."""
_MAX_ROUNDS = 4
STEPS = 4
"""How many times `progress` is called."""


@dataclass(kw_only=True)
class Case:
    """One check in progress."""

    model: StreamModel
    corpus: Corpus
    lab: Lab
    active: frozenset[str]
    progress: Progress
    readings: Readings | None = None
    """Of the model as it is, once it was read."""
    estimates: Float[np.ndarray, " write"] = field(default_factory=lambda: np.zeros(0))
    repairs: dict[Key, Trial] = field(default_factory=dict)
    """Changes of weights that were shown to undo a finding."""

    @cached_property
    def weights(self) -> WeightTable:
        """Readings of the parameters."""
        return read_model_weights(self.model)

    def solve(self) -> list[Finding]:
        """All findings; readings and estimates of the model as it is are kept."""
        recording = self._record(at_end=self.lab.hear)
        self.readings = read(recording, self.model.spec.writes)
        self.estimates = np.full(len(self.readings.writes), np.nan)
        self.progress(1, STEPS)
        findings = self._facts()
        broken = self._not_finite(recording)
        if broken is None:
            findings += self._run_rules(recording, findings)
        elif "RS001" in self.active:
            # A single weight that is out of all proportion is what overflows further on.
            findings = sorted([broken, *findings], key=lambda finding: finding.code != "RS404")
        self.progress(STEPS, STEPS)
        return findings

    def _not_finite(self, recording: Recording) -> Finding | None:
        if recording.first_non_finite is not None:
            assert self.readings is not None, "solve reads first"
            return rs001_not_finite.in_stream(recording.first_non_finite, self.readings)
        self.lab.settle_base()
        return rs001_not_finite.in_readout() if self.lab.has_nan else None

    def _facts(self) -> list[Finding]:
        """What weights and configuration say without a run.

        A write that a zero output matrix silences is found by what it writes (RS101).
        """
        named = (write.output_matrix for write in self.model.spec.writes)
        outputs = frozenset(name for name in named if name is not None)
        facts = [
            finding
            for finding in weight_findings(self.weights, outputs, self.active)
            if finding.code != "RS401" or finding.statement.split(" ")[0] not in outputs
        ]
        return facts + remarks(self.model, self.weights, self.active)

    def _run_rules(self, recording: Recording, facts: Sequence[Finding]) -> list[Finding]:
        assert self.readings is not None, "solve reads first"
        self.estimates = self._estimate()
        self.progress(2, STEPS)
        findings = rs000_too_short.look(self.corpus) if "RS000" in self.active else []
        scene = self._scene(self.readings, self.estimates)
        drowned = any(fact.code == "RS404" for fact in facts)  # then zeros may be its victims
        zeros, dead = ([], frozenset[int]()) if drowned else self._find_zeros(scene)
        found, scene, accused = self._find_pollution(scene)
        self.progress(3, STEPS)
        found += self._find_collapse(scene, accused | dead)
        findings += zeros
        beyond_repair = [finding for finding in found if finding.code in BEYOND_REPAIR]
        findings += weigh(found, [*facts, *zeros, *beyond_repair])
        if "RS205" in self.active:
            findings += rs205_never_recovers.look(self.lab, [*facts, *findings])
        if "RS301" in self.active:
            findings += rs301_exploding.look(recording)
        if "RS302" in self.active:
            findings += rs302_stalled.look(scene.readings, self.lab)
        if "RS303" in self.active:
            findings += rs303_lossy.look(self.model, self.corpus)
        if "RS000" in self.active and not any(f.status == "confirmed" for f in findings):
            findings += rs000_too_short.strange(self.lab)
        return findings

    def _record(self, at_end: AtEnd | None = None) -> Recording:
        with self.lab.repaired():
            return record(self.model, self.corpus, at_end=at_end)

    def _scene(self, readings: Readings, estimates: Float[np.ndarray, " write"]) -> Scene:
        return Scene(
            model=self.model,
            readings=readings,
            estimates=estimates,
            screened=self._screen(readings),
            weights=self.weights,
            lab=self.lab,
        )

    def _estimate(self) -> Float[np.ndarray, " write"]:
        """First-order effect of each write, where there is a loss."""
        if not self.lab.readable or "RS203" not in self.active:
            return np.full(len(self.model.spec.writes), np.nan)
        with self.lab.repaired():
            sample = self.corpus.head(_ESTIMATE_SEQUENCES)
            sums = estimate_ablations(self.model, sample)
        return sums.sum(1) / sample.n_predicted

    def _screen(self, readings: Readings) -> Float[np.ndarray, " write"]:
        """Exact effect of taking each write away, on a few tokens."""
        rows = range(len(readings.writes))
        if not self.lab.informative or "RS203" not in self.active:
            return np.full(len(rows), np.nan)
        return self.lab.screen([change_trial(readings, row, "zero", zero) for row in rows])

    def _find_zeros(self, scene: Scene) -> tuple[list[Finding], frozenset[int]]:
        """Writes that are exactly nothing, and their rows: facts, before any repair is tried."""
        rule = RULES["RS101"]
        assert rule.suspects is not None, "RS101 names suspects"
        suspects = rule.suspects(scene) if rule.code in self.active else []
        findings = decide_collapse(suspects, scene.readings, self.lab)
        return findings, frozenset(suspect.index for suspect in suspects)

    def _find_pollution(self, scene: Scene) -> tuple[list[Finding], Scene, frozenset[int]]:
        """Find culprits one after the other, each with the repairs of those before in place."""
        findings: list[Finding] = []
        accused: set[int] = set()
        harmful: frozenset[int] | None = None
        for _ in range(_MAX_ROUNDS):
            was_informative = self.lab.informative
            suspects = [
                suspect
                for suspect in self._suspects(scene, "pollution")
                if suspect.index not in accused
                and (suspect.code != "RS203" or harmful is None or suspect.index in harmful)
            ]
            tried = decide_pollution(suspects, scene.readings, self.lab)
            if self.lab.informative and not was_informative:
                # A repair gave back what a fault had cost, so that rules can ask for the loss.
                scene = self._scene(scene.readings, scene.estimates)
                continue
            proved = _proved(tried)
            if not proved:
                findings += [d.finding for d in tried.decided if d.finding]
                break
            if harmful is None:
                # A repair may be crude (a write taken away), and what then looks harmful only
                # misses it: harm counts as a finding if it was there before the repair as well.
                harmful = tried.harmful
            culprit, finding, repair = _culprit(proved)
            accused.add(culprit.index)
            self.lab.standing.append(repair.trial)
            if repair.trial.weights:
                self.repairs[key_of(finding)] = repair.trial
            readings = read(self._record(), scene.readings.writes)
            findings.append(_with_recovery(finding, culprit.index, scene.readings, readings))
            scene = self._scene(readings, self._estimate())
        return findings, scene, frozenset(accused)

    def _find_collapse(self, scene: Scene, accused: frozenset[int]) -> list[Finding]:
        scene = self._with_attention(scene)
        quiet = [s for s in self._suspects(scene, "collapse") if s.index not in accused]
        findings = decide_collapse(quiet, scene.readings, self.lab)
        if "RS402" in self.active and self.lab.informative:
            dead = {(finding.layer, finding.write) for finding in findings}
            noisy = RULES["RS402"].suspects
            assert noisy is not None, "RS402 names suspects"
            left = [
                suspect
                for suspect in noisy(scene)
                if suspect.evidence  # something speaks for noise, not only a large norm
                and suspect.index not in accused
                and (scene.writes[suspect.index].layer, scene.writes[suspect.index].name)
                not in dead
            ]
            findings += decide_untrained(left, scene)
        return findings

    def _with_attention(self, scene: Scene) -> Scene:
        """The scene with what the heads look at in one sequence, where that can be read."""
        if not {"RS105", "RS106"} & self.active or not self.model.spec.causal:
            return scene
        try:
            with self.lab.repaired():
                seen = attention(self.model, self.corpus.head(1))
        except UnsupportedModelError:
            return scene
        layers = seen.layers.tolist()
        return replace(
            scene,
            entropies=dict(zip(layers, seen.entropy, strict=True)),
            first_shares=dict(zip(layers, seen.first_share, strict=True)),
        )

    def _suspects(self, scene: Scene, stage: Stage) -> list[Suspect]:
        return [
            suspect
            for rule in RULES.values()
            if rule.stage == stage and rule.code in self.active and rule.suspects is not None
            for suspect in rule.suspects(scene)
        ]


class _Proved(NamedTuple):
    """A suspect that was confirmed, and the trial that repairs it."""

    suspect: Suspect
    finding: Finding
    repair: Outcome


def _proved(tried: Round) -> list[_Proved]:
    return [
        _Proved(decision.suspect, decision.finding, decision.repair)
        for decision in tried.decided
        if decision.finding and decision.repair
    ]


def _culprit(proved: Sequence[_Proved]) -> _Proved:
    """The write whose repair helps most, by the rule that says most about it.

    Harm alone says less than size or channel, though taking a bad write away may help more;
    a rule whose repair helps less than three quarters as much does not explain it.
    """
    best = min(proved, key=lambda item: _gain(item.repair))
    same = [
        item
        for item in proved
        if item.suspect.index == best.suspect.index
        and _gain(item.repair) <= 0.75 * _gain(best.repair)
    ]
    return min(same, key=lambda item: (_says_little(item), _gain(item.repair)))


def _says_little(item: _Proved) -> bool:
    """Harm of any kind, or noise, whose cure helps a matrix that is too large as well."""
    return item.suspect.code == "RS203" or item.repair.trial.label == DENOISING


def _gain(outcome: Outcome) -> float:
    """The more negative, the better the repair: loss gained, or distance from the faulty output."""
    return outcome.effect if outcome.experiment.measure == "loss" else -outcome.effect


def _with_recovery(finding: Finding, index: int, before: Readings, after: Readings) -> Finding:
    """Add what the repair does to the next writes: how much larger they are beside the stream."""
    if index + 1 >= len(before.writes):
        return finding
    later = slice(index + 1, None)
    with np.errstate(divide="ignore", invalid="ignore"):
        growth = float(np.median(after.relative_norm[later] / before.relative_norm[later]))
    if not math.isfinite(growth):
        return finding
    recovery = Evidence(
        name="relative write norm of all later writes with the repair, over without it (median)",
        value=growth,
        threshold=None,
        ci=None,
    )
    return replace(finding, evidence=(*finding.evidence, recovery))
