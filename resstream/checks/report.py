"""What a check found: findings as data, with the evidence for and against each."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from resstream.stream.result import Result

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

Verdict = Literal["healthy", "findings", "inconclusive"]
Status = Literal["confirmed", "suspect", "abstained"]
Severity = Literal["error", "warning", "info"]

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
"""Most serious first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One number for or against a finding."""

    name: str
    """What was measured, with its unit."""
    value: float
    threshold: float | None
    """What it was held against."""
    ci: tuple[float, float] | None
    """95 % interval over documents, where there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong (or may be), where, why, and what to do."""

    code: str
    """Stable code of the rule, for example ``RS201``."""
    status: Status
    severity: Severity
    layer: int | None
    write: str | None
    site: str | None
    statement: str
    evidence: tuple[Evidence, ...]
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteReading:
    """The passive numbers of one write: medians over tokens that are no sinks."""

    layer: int
    write: str
    write_norm: float
    relative_norm: float
    """Norm of the write over norm of the stream that it is added to."""
    cosine: float
    channel_share: float
    """Part of the squared norm that lies in the largest channel."""
    expected_norm: float
    """Median write norm of its neighbours: writes of the same kind up to three blocks away."""
    z: float
    """How far log(write norm) is from its neighbours', in their robust standard deviations."""
    estimated_effect: float
    """First-order estimate of zero ablation, in nats per token; NaN if it was not made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One causal test."""

    layer: int
    write: str
    change: str
    """What was done to the write: ``zero``, ``rescale``, ``clip channel 7``, ``flip``."""
    measure: Literal["loss", "divergence"]
    """Change of the cross-entropy, or KL(clean || changed); both in nats per token."""
    effect: float
    ci: tuple[float, float]
    n_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemedyTrial:
    """A fix that was tried in memory, on tokens that were not used to choose it."""

    code: str
    """Rule of the finding."""
    layer: int
    write: str | None
    remedy: str
    """What is done to which weights."""
    loss_before: float
    """Cross-entropy of the model as it is, in nats per token."""
    loss_after: float
    """The same with this fix and the best ones of the findings before it."""
    change: float
    """What this fix changes, with the best ones of the findings before it in place."""
    ci: tuple[float, float]
    """95 % interval of the change, over documents."""
    n_tokens: int
    held_out: bool
    """False if there were too few sequences to keep some apart."""
    best: bool
    """True for the fix that is named first, and exported; other tokens have chosen it."""
    short: str = ""
    """The remedy without the names of the weights, such as ``x 0.0219``."""
    parameters: tuple[str, ...] = ()
    """Names of the weights that it changes."""


@dataclass(frozen=True, kw_only=True)
class CheckReport(Result):
    """The verdict on a model."""

    schema: ClassVar[str] = "resstream.check/1"

    model: str
    text: str
    verdict: Verdict
    findings: tuple[Finding, ...]
    """Most serious first."""
    base_loss: float
    """Cross-entropy on the text, in nats per predicted token; NaN if the model predicts none."""
    writes: tuple[WriteReading, ...]
    experiments: tuple[Experiment, ...]
    remedies: tuple[RemedyTrial, ...] = ()
    """Fixes that were tried, the best one of each finding first."""
    accepted: tuple[Finding, ...] = ()
    """Findings that a baseline accepts; they count for nothing."""

    def confirmed(self, at_least: Severity = "warning") -> tuple[Finding, ...]:
        """Confirmed findings of this severity or worse: they make `resstream check` exit with 1."""
        worst = SEVERITIES[: SEVERITIES.index(at_least) + 1]
        return tuple(f for f in self.findings if f.status == "confirmed" and f.severity in worst)

    def to_dataframe(self) -> "pd.DataFrame":
        """One row a finding."""
        import pandas as pd

        columns = ["code", "status", "severity", "layer", "write", "site", "statement", "remedy"]
        rows = [{name: getattr(item, name) for name in columns} for item in self.findings]
        return pd.DataFrame(rows, columns=columns).astype({"layer": "Int64"})

    def plot(self) -> "go.Figure":
        """Write norms over the layers, with what the neighbours lead one to expect."""
        from resstream.figures.marks import Mark
        from resstream.figures.profile import Series, layer_profile

        names = dict.fromkeys(row.write for row in self.writes)
        series = [
            Series(
                name=name,
                values=np.array([row.write_norm for row in self.writes if row.write == name]),
                at=np.array([float(row.layer) for row in self.writes if row.write == name]),
            )
            for name in names
        ]
        marks = [
            Mark(item.layer, f"{item.code} {item.write or ''}".strip())
            for item in self.findings
            if item.layer is not None and item.status == "confirmed"
        ]
        return layer_profile(
            series, value_title="median write norm", log=True, marks=marks, title=self.model
        )
