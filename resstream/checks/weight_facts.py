"""What can be said about a tensor without running the model."""

from dataclasses import dataclass

from resstream.checks.report import Evidence, Severity, Status
from resstream.checks.weights import MatrixReading


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFact:
    """One finding about weights."""

    reading: MatrixReading
    statement: str
    evidence: tuple[Evidence, ...]
    status: Status = "confirmed"
    """`suspect` where weights alone can't tell a fault from a peculiarity."""
    severity: Severity | None = None
    """The rule's own if None."""
