"""What came of a training run?"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from jaxtyping import Float, Int

from resstream.stream.result import Result
from resstream.train.recording import TrainingRecording

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingResult(Result):
    """Losses of a run, in nats per predicted token, and what the monitor saw."""

    schema: ClassVar[str] = "resstream.train/1"

    directory: str
    """The checkpoint, and all that belongs to the run."""
    rule: str
    """Kind of the residual rule."""
    n_layers: int
    d_model: int
    n_parameters: int
    n_steps: int
    n_tokens: int
    """Tokens read, those of earlier parts of a resumed run included."""
    resumed_from: int | None
    """Step of the checkpoint that the run went on from."""
    logged_steps: Int[np.ndarray, " log"]
    logged_loss: Float[np.ndarray, " log"]
    """Mean over the steps since the last entry."""
    validation_steps: Int[np.ndarray, " measurement"]
    validation_loss: Float[np.ndarray, " measurement"]
    final_loss: float
    """Last of `logged_loss`."""
    final_validation_loss: float | None
    recording: TrainingRecording | None
    """Step by step; None if the run had no monitor."""

    def to_dataframe(self) -> "pd.DataFrame":
        """One row a measurement of the loss."""
        import pandas as pd

        parts = {
            "training": (self.logged_steps, self.logged_loss),
            "validation": (self.validation_steps, self.validation_loss),
        }
        return pd.DataFrame(
            [
                {"step": step, "text": name, "loss_nats": loss}
                for name, (steps, losses) in parts.items()
                for step, loss in zip(steps.tolist(), losses.tolist(), strict=True)
            ],
            columns=["step", "text", "loss_nats"],
        )

    def plot(self) -> "go.Figure":
        """Loss over the steps."""
        from resstream.figures.profile import Series
        from resstream.figures.steps import step_lines

        losses = Series("training", self.logged_loss, at=self.logged_steps.astype(np.float64))
        if self.recording is not None:
            at = self.recording.steps.astype(np.float64)
            losses = Series("training", self.recording.loss, at=at)
        lines = [losses]
        if len(self.validation_steps):
            at = self.validation_steps.astype(np.float64)
            lines.append(Series("validation", self.validation_loss, at=at))
        return step_lines(lines, value_title="loss, nats per token")
