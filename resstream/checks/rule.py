"""What is a rule?  A stable code with its explanation, and how it names suspects."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from resstream.checks.experiments import Outcome, Trial
from resstream.checks.report import Evidence, Finding, Severity, Status
from resstream.checks.scene import Scene

Stage = Literal["input", "pollution", "collapse", "stream", "weights", "config", "reference"]
"""When a rule is asked, and by what it is confirmed:

``input`` before anything is read; ``pollution``: a repair must lower the loss; ``collapse``:
taking the write away must change nothing; ``stream``: about several writes together; ``weights``:
facts about matrices, which need no text; ``config``: readable in the configuration;
``reference``: against another checkpoint.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """One write that a rule wants to try."""

    code: str
    index: int
    """Row of the write."""
    trials: tuple[Trial, ...]
    """Changes of which one would undo the fault (pollution) or show that nothing is there."""
    evidence: tuple[Evidence, ...]
    statement: Callable[[Outcome], str]
    """The sentence of a finding, once a trial was made."""
    whole_layer: bool = False
    """True if the finding is about a block and not about one of its writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule of `resstream check`: the text that `resstream explain` prints, and its detector."""

    code: str
    """Stable: ``RS`` and three digits, the first of which is the group."""
    name: str
    stage: Stage
    severity: Severity
    what: str
    """What is found, in a sentence."""
    why: str
    """Why it matters."""
    detection: str
    """How it is detected and confirmed."""
    traps: str
    """What looks the same in a healthy model, and how that is told apart."""
    fix: str
    """What to do; also the remedy of a finding where nothing better was measured."""
    source: str
    example: str
    """Commands that show it on the embedded model."""
    suspects: Callable[[Scene], list[Suspect]] | None = None
    """Names the writes to try (stages ``pollution`` and ``collapse``)."""

    def of_model(
        self, statement: str, *, status: Status = "confirmed", evidence: tuple[Evidence, ...] = ()
    ) -> Finding:
        """A finding that is about no layer."""
        return Finding(
            code=self.code,
            status=status,
            severity=self.severity,
            layer=None,
            write=None,
            site=None,
            statement=statement,
            evidence=evidence,
            remedy=self.fix,
        )
