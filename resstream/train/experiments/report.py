"""What did the experiments say?  The result that is saved, shown and put on a page."""

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from resstream.stream.result import Result
from resstream.train.experiments.drawing import draw_chart, draw_verdicts
from resstream.train.experiments.experiment import Chart, Measured, Readings, Verdict

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentRecord:
    """One experiment as it ran."""

    name: str
    title: str
    claim: str
    source: str
    rows: tuple[int, ...]
    """Rows of docs/mission.md."""
    method: str
    verdict: Verdict
    statement: str
    measured: tuple[Measured, ...]
    chart: Chart
    size: str
    """``quick`` or ``full``."""
    seed: int
    recipe: str
    """First hex digits of the SHA-256 of the code that measured and judged."""
    seconds: float

    def plot(self) -> "go.Figure":
        """The figure of this experiment."""
        return draw_chart(self.chart, Readings(self.measured))


@dataclass(frozen=True, kw_only=True)
class ExperimentReport(Result):
    """One or more experiments."""

    schema: ClassVar[str] = "resstream.experiment/1"

    experiments: tuple[ExperimentRecord, ...]

    def verdicts(self) -> dict[Verdict, int]:
        """How many experiments have each verdict."""
        found = Counter(record.verdict for record in self.experiments)
        return {verdict: found[verdict] for verdict in VERDICTS}

    def to_dataframe(self) -> "pd.DataFrame":
        """One row a quantity, place and experiment."""
        import pandas as pd

        return pd.DataFrame(
            [
                {
                    "experiment": record.name,
                    "verdict": record.verdict,
                    "quantity": item.quantity,
                    "at": item.at,
                    "value": item.value,
                    "low": item.low,
                    "high": item.high,
                    "n_seeds": item.n_seeds,
                }
                for record in self.experiments
                for item in record.measured
            ]
        )

    def plot(self) -> "go.Figure":
        """The figure of the experiment, or of several the count of verdicts."""
        if len(self.experiments) == 1:
            return self.experiments[0].plot()
        return draw_verdicts(self.verdicts())


VERDICTS: tuple[Verdict, ...] = ("holds", "does not hold here", "not testable at this size")
