"""`check`: which write is collapsed, polluted or not finite, and which one is only a victim?

One pass of passive readings names suspects.  The suspects of pollution are tried together; the
repair that helps most is the culprit's and then stands, and everything is read again as it would be
without that fault: whoever looks healthy then was a victim.  Writes that look dead are tried last.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from resstream.analysis.attribution import estimate_ablations
from resstream.checks import rules
from resstream.checks.experiments import Lab, Outcome
from resstream.checks.readings import Readings, read
from resstream.checks.report import (
    SEVERITIES,
    CheckReport,
    Evidence,
    Finding,
    Verdict,
    WriteReading,
)
from resstream.errors import ConfigError, UnsupportedModelError
from resstream.recording.recorder import record
from resstream.recording.result import Culprit, Recording
from resstream.stream.model import StreamModel
from resstream.stream.provenance import provenance_of
from resstream.stream.texts import Corpus, Texts, read_corpus

Progress = Callable[[int, int], None]

CODES = ("RS000", "RS001", "RS101", "RS102", "RS201", "RS202", "RS203")
"""All rules: too little text, not finite, zero, faint, large, one channel, harmful."""

_MIN_SEQUENCES = 4
_MIN_TOKENS = 400
_ESTIMATE_SEQUENCES = 8
"""Enough to rank candidates; the experiments that decide read everything."""
_MAX_ROUNDS = 4
_STEPS = 4


def check(
    model: StreamModel,
    texts: Texts | Corpus = None,
    *,
    select: Collection[str] | None = None,
    ignore: Collection[str] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> CheckReport:
    """Look for writes that are collapsed or pollute the stream, and prove what is found.

    Args:
        model: A model of tokens with logits.
        texts: What it reads (see `resstream.stream.texts.read_corpus`), or a corpus made of it.
        select: Codes of the rules that are used; all if None.
        ignore: Codes of rules that are left out.
        seed: Of the bootstrap.
        progress: Called after each step with the steps done and their total.

    Raises:
        UnsupportedModelError: The model has no logits over tokens.
        ConfigError: An unknown code.
        TextError: The text can't be used.
    """
    active = _active_codes(select, ignore)
    if model.spec.d_vocab is None:
        raise UnsupportedModelError(
            f"check needs a model with logits over tokens; {model.name} ({model.spec.family}) "
            "has none"
        )
    corpus = read_corpus(model, texts, seed=seed)
    case = _Case(model, corpus, Lab(model, corpus, seed), active, progress or (lambda *_: None))
    return case.solve()


def _active_codes(select: Collection[str] | None, ignore: Collection[str] | None) -> frozenset[str]:
    for code in [*(select or ()), *(ignore or ())]:
        if code not in CODES:
            raise ConfigError(f"unknown rule {code!r}; there are {', '.join(CODES)}")
    return frozenset(CODES if select is None else select) - frozenset(ignore or ())


@dataclass
class _Case:
    """One check in progress."""

    model: StreamModel
    corpus: Corpus
    lab: Lab
    active: frozenset[str]
    progress: Progress

    def solve(self) -> CheckReport:
        recording = self._record()
        readings = read(recording, self.model.spec.writes)
        estimates = np.full(len(readings.writes), np.nan)
        self.progress(1, _STEPS)
        findings: list[Finding] = []
        if recording.first_non_finite is not None:
            if "RS001" in self.active:
                findings.append(_non_finite(recording.first_non_finite))
        elif self._has_nan_output():
            findings += [_NAN_OUTPUT] if "RS001" in self.active else []
        else:
            estimates = self._estimate()
            self.progress(2, _STEPS)
            findings += self._too_short()
            findings += self._find_pollution(readings, estimates)
        self.progress(_STEPS, _STEPS)
        return self._report(findings, readings, estimates)

    def _has_nan_output(self) -> bool:
        self.lab.measure_base()
        return self.lab.has_nan

    def _record(self) -> Recording:
        with self.model.hooked(self.lab.hooks()):
            return record(self.model, self.corpus)

    def _estimate(self) -> Float[np.ndarray, " write"]:
        """First-order effect of each write, where there is a loss."""
        if not self.lab.readable or "RS203" not in self.active:
            return np.full(len(self.model.spec.writes), np.nan)
        with self.model.hooked(self.lab.hooks()):
            sample = self.corpus.head(_ESTIMATE_SEQUENCES)
            sums = estimate_ablations(self.model, sample)
        return sums.sum(1) / sample.n_predicted

    def _find_pollution(
        self, readings: Readings, estimates: Float[np.ndarray, " write"]
    ) -> list[Finding]:
        findings: list[Finding] = []
        accused: set[int] = set()
        harmful: frozenset[int] | None = None
        for _ in range(_MAX_ROUNDS):
            suspects = [
                suspect
                for suspect in self._suspects(readings, estimates)
                if suspect.index not in accused
                and (suspect.code != "RS203" or harmful is None or suspect.index in harmful)
            ]
            tried = rules.decide_pollution(suspects, readings, self.lab)
            decided = tried.decided
            proved = [_Proved(s, d.finding, d.repair) for s, d in decided if d.finding and d.repair]
            if not proved:
                findings += [d.finding for _, d in decided if d.finding]
                break
            if harmful is None:
                # A repair may be crude (a write taken away), and what then looks harmful only
                # misses it: harm counts as a finding if it was there before the repair as well.
                harmful = tried.harmful
            culprit, finding, repair = _culprit(proved)
            before = readings
            findings.append(finding)
            accused.add(culprit.index)
            self.lab.standing.append(repair.trial.edit)
            readings, estimates = read(self._record(), readings.writes), self._estimate()
            findings[-1] = _with_recovery(finding, culprit.index, before, readings)
        self.progress(3, _STEPS)
        quiet = [s for s in rules.suspects_of_collapse(readings) if s.index not in accused]
        quiet = [s for s in quiet if s.code in self.active]
        return findings + rules.decide_collapse(quiet, readings, self.lab)

    def _suspects(
        self, readings: Readings, estimates: Float[np.ndarray, " write"]
    ) -> list[rules.Suspect]:
        suspects = [
            *rules.suspects_of_size(readings),
            *rules.suspects_of_channel(readings),
            *rules.suspects_of_harm(readings, estimates),
        ]
        return [suspect for suspect in suspects if suspect.code in self.active]

    def _too_short(self) -> list[Finding]:
        have, sequences = self.corpus.n_predicted, len(set(self.corpus.documents))
        enough = have >= _MIN_TOKENS and sequences >= _MIN_SEQUENCES
        if enough or "RS000" not in self.active:
            return []
        statement = (
            f"the text is too short for verdicts: {have} predicted tokens in {sequences} "
            f"independent sequences; at least {_MIN_TOKENS} in {_MIN_SEQUENCES} are needed"
        )
        finding = Finding(
            code="RS000",
            status="abstained",
            severity="info",
            layer=None,
            write=None,
            site=None,
            statement=statement,
            evidence=(),
            remedy="give more text (--text, --sequences)",
        )
        return [finding]

    def _report(
        self,
        findings: Sequence[Finding],
        readings: Readings,
        estimates: Float[np.ndarray, " write"],
    ) -> CheckReport:
        order = {"confirmed": 0, "suspect": 1, "abstained": 2}
        ranked = sorted(
            findings, key=lambda f: (order[f.status], SEVERITIES.index(f.severity))
        )  # stable: among equals the one whose repair helped most comes first
        return CheckReport(
            provenance=provenance_of(
                self.model, self.corpus.description, self.corpus.hash, seed=self.lab.seed
            ),
            model=self.model.name,
            text=self.corpus.description,
            verdict=_verdict(ranked),
            findings=tuple(ranked),
            base_loss=self.lab.base_loss,
            writes=_rows(readings, estimates),
            experiments=tuple(outcome.experiment for outcome in self.lab.done),
        )


class _Proved(NamedTuple):
    """A suspect that was confirmed, and the trial that repairs it."""

    suspect: rules.Suspect
    finding: Finding
    repair: Outcome


def _culprit(proved: Sequence[_Proved]) -> _Proved:
    """The write whose repair helps most, by the rule that says most about it.

    Harm alone (RS203) says less than size or channel, though taking a bad write away may help more.
    """
    best = min(proved, key=lambda item: _gain(item.repair))
    same = [item for item in proved if item.suspect.index == best.suspect.index]
    return min(same, key=lambda item: (item.suspect.code == "RS203", _gain(item.repair)))


def _gain(outcome: Outcome) -> float:
    """The more negative, the better the repair: loss gained, or distance from the faulty output."""
    return outcome.effect if outcome.experiment.measure == "loss" else -outcome.effect


def _verdict(findings: Sequence[Finding]) -> Verdict:
    if any(finding.status == "confirmed" for finding in findings):
        return "findings"
    return "inconclusive" if findings else "healthy"


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
        value=growth, threshold=None, ci=None,
    )  # fmt: skip
    return Finding(
        **{name: getattr(finding, name) for name in Finding.__slots__ if name != "evidence"},
        evidence=(*finding.evidence, recovery),
    )


_NAN_OUTPUT = Finding(
    code="RS001",
    status="confirmed",
    severity="error",
    layer=None,
    write=None,
    site=None,
    statement="the logits hold NaN though the stream is finite to the end: the readout makes them",
    evidence=(
        Evidence(name="first value that is not finite", value=math.nan, threshold=None, ci=None),
    ),
    remedy="look for NaN or infinity in the final norm and the unembedding and restore them",
)


def _non_finite(culprit: Culprit) -> Finding:
    return Finding(
        code="RS001",
        status="confirmed",
        severity="error",
        layer=culprit.layer,
        write=culprit.write,
        site=culprit.site,
        statement=(
            f"{culprit.site} is the first value that is not finite: {culprit.value} in sequence "
            f"{culprit.sequence}, token {culprit.token}, channel {culprit.channel}; everything "
            "that reads the stream after it is lost"
        ),
        evidence=(
            Evidence(
                name="first value that is not finite", value=culprit.value, threshold=None, ci=None
            ),
        ),
        remedy="look for NaN or infinity in this layer's weights and restore them; in training, "
        "keep the stream in float32 and clip gradients",
    )


def _rows(readings: Readings, estimates: Float[np.ndarray, " write"]) -> tuple[WriteReading, ...]:
    return tuple(
        WriteReading(
            layer=write.layer,
            write=write.name,
            write_norm=float(readings.write_norm[i]),
            relative_norm=float(readings.relative_norm[i]),
            cosine=float(readings.cosine[i]),
            channel_share=float(readings.channel_share[i]),
            expected_norm=float(readings.expected_norm[i]),
            z=float(readings.norm_z[i]),
            estimated_effect=float(estimates[i]),
        )
        for i, write in enumerate(readings.writes)
    )
