"""What did a monitor see, step by step?"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from jaxtyping import Float, Int

from resstream.stream.provenance import Provenance
from resstream.stream.result import Result
from resstream.train.series import open_series
from resstream.train.watching import LEDGER

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

MOST_POINTS = 500
"""Steps that a recording shows one by one; of longer runs it shows means over equal spans."""

METRICS = (*LEDGER, "scale", "stream_norm", "gradient_norm")
"""What is followed by layer."""

_TITLES = {
    "write_norm": "norm of the write",
    "relative_norm": "norm of the write / norm of the stream",
    "cosine": "cosine with the stream (blue: along it)",
    "scale": "scale of the branch (blue: positive)",
    "stream_norm": "norm of the stream",
    "gradient_norm": "norm of the gradient of a block's weights",
}
_SIGNED = ("cosine", "scale")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCulprit:
    """The first value of a run that was not finite."""

    step: int
    """Counted from 1."""
    place: str
    """A site in the order of execution, ``loss``, or the gradient of a block."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingRecording(Result):
    """Writes, stream and gradients of a model while it trained, as time series.

    Each number of a write or of the stream is a median over a sample of the tokens of a step, sinks
    left out (`resstream.recording.strata`); metrics are those of
    `resstream.recording.ledger.write_metrics`.  Axis ``point`` is a step, or the mean over a span
    of steps in a run of more than `MOST_POINTS`.
    """

    schema: ClassVar[str] = "resstream.monitor/1"

    n_steps: int
    """Steps that were recorded."""
    steps: Int[np.ndarray, " point"]
    """Last step of each point; steps count from 1."""
    loss: Float[np.ndarray, " point"]
    """In nats per predicted token, for a language model."""
    learning_rate: Float[np.ndarray, " point"]
    """Of the first parameter group."""
    gradient_norm: Float[np.ndarray, "point block"]
    """Norm of the gradient of each block's weights, before clipping."""
    other_gradient_norm: Float[np.ndarray, " point"]
    """The same of all parameters outside of the blocks."""
    layers: Int[np.ndarray, " write"]
    names: tuple[str, ...]
    sites: tuple[str, ...]
    write_norm: Float[np.ndarray, "point write"]
    relative_norm: Float[np.ndarray, "point write"]
    cosine: Float[np.ndarray, "point write"]
    scale_layers: Int[np.ndarray, " scale"]
    scale_names: tuple[str, ...]
    """Sublayers whose branch is scaled."""
    scale: Float[np.ndarray, "point scale"]
    """Mean of what multiplies the branch."""
    stream_sites: tuple[str, ...]
    stream_norm: Float[np.ndarray, "point depth"]
    bad_steps: int
    """Steps in which something was not finite."""
    first_bad: StepCulprit | None

    @property
    def total_gradient_norm(self) -> Float[np.ndarray, " point"]:
        """Norm of the gradient of all parameters, before clipping."""
        return np.hypot(np.linalg.norm(self.gradient_norm, axis=1), self.other_gradient_norm)

    def values(self, metric: str) -> Float[np.ndarray, "point row"]:
        """The series of one metric.

        Raises:
            ValueError: There is no such metric.
        """
        if metric not in METRICS:
            raise ValueError(f"metric must be one of {', '.join(METRICS)}, got {metric!r}")
        return getattr(self, metric)

    def rows(self, metric: str) -> tuple[tuple[str, int], ...]:
        """Name and layer of each row of a metric."""
        if metric == "stream_norm":
            split = [site.split(".") for site in self.stream_sites]
            return tuple((name.removeprefix("hook_"), int(layer)) for _, layer, name in split)
        if metric == "gradient_norm":
            return tuple(("block", layer) for layer in range(self.gradient_norm.shape[1]))
        if metric == "scale":
            return tuple(zip(self.scale_names, self.scale_layers.tolist(), strict=True))
        return tuple(zip(self.names, self.layers.tolist(), strict=True))

    def to_dataframe(self) -> "pd.DataFrame":
        """One row a point, metric and place; norms in the units of the stream or the weights."""
        import pandas as pd

        table = pd.DataFrame([row for metric in METRICS for row in self._rows_of(metric)])
        whole = {
            "loss": self.loss,
            "learning_rate": self.learning_rate,
            "gradient_norm": self.total_gradient_norm,
        }
        totals = [
            {"step": step, "metric": metric, "place": None, "layer": None, "value": value}
            for metric, values in whole.items()
            for step, value in zip(self.steps.tolist(), values.tolist(), strict=True)
        ]
        return pd.concat([pd.DataFrame(totals), table]).astype({"layer": "Int64"})

    def _rows_of(self, metric: str) -> Iterator[dict[str, Any]]:
        for column, (place, layer) in enumerate(self.rows(metric)):
            series = self.values(metric)[:, column].tolist()
            for step, value in zip(self.steps.tolist(), series, strict=True):
                row = {"step": step, "metric": metric, "place": place, "layer": layer}
                yield row | {"value": value}

    def plot(self, metric: str = "relative_norm") -> "go.Figure":
        """One metric by layer and step, as a heat map.

        Writes of one kind lie together: first all of attention, from layer 0 up, then the MLPs.

        Args:
            metric: One of `METRICS`.
        """
        from resstream.figures.steps import layer_step_heatmap

        places = self.rows(metric)
        kinds = list(dict.fromkeys(name for name, _ in places))
        order = sorted(range(len(places)), key=lambda row: (kinds.index(places[row][0]), row))
        if metric == "stream_norm":
            order = list(range(len(places)))
        return layer_step_heatmap(
            self.values(metric)[:, order].T,
            self.steps,
            [f"{layer} {name}" for name, layer in (places[row] for row in order)],
            value_title=_TITLES[metric],
            signed=metric in _SIGNED,
        )


def read_recording(
    directory: str | Path, provenance: Provenance, *, most: int = MOST_POINTS
) -> TrainingRecording:
    """The recording of a series on disk, also of a run that is not yet at its end.

    Args:
        directory: Where the monitor writes.
        provenance: Of the run.
        most: Points at most.

    Raises:
        ResultError: There is no series.
    """
    layout, rows = open_series(directory)
    spans = np.array_split(np.arange(len(rows)), min(most, len(rows))) if len(rows) else []
    means = np.array([_mean(rows[span[0] : span[-1] + 1]) for span in spans])
    parts = layout.split(means.reshape(len(spans), layout.width))
    last = np.array([rows[span[-1], 0] for span in spans], dtype=np.int64)
    bad = np.flatnonzero(np.asarray(rows[:, 3]) >= 0)
    first = None
    if len(bad):
        row = rows[bad[0]]
        first = StepCulprit(step=int(row[0]), place=layout.places[int(row[3])])
    writes = dict(zip(LEDGER, np.moveaxis(parts["writes"], 1, 0), strict=True))
    return TrainingRecording(
        provenance=provenance,
        n_steps=len(rows),
        steps=last,
        loss=parts["loss"],
        learning_rate=parts["learning_rate"],
        gradient_norm=parts["gradients"][:, :-1],
        other_gradient_norm=parts["gradients"][:, -1],
        layers=np.array(layout.layers, dtype=np.int64),
        names=layout.names,
        sites=layout.sites,
        **writes,
        scale_layers=np.array(layout.scale_layers, dtype=np.int64),
        scale_names=layout.scale_names,
        scale=parts["scale"],
        stream_sites=layout.stream_sites,
        stream_norm=parts["stream_norm"],
        bad_steps=len(bad),
        first_bad=first,
    )


def _mean(rows: Float[np.ndarray, "step column"]) -> Float[np.ndarray, " column"]:
    """Mean over the steps of a span, in which a number may be missing now and then."""
    values = np.asarray(rows, dtype=np.float64)
    counts = (~np.isnan(values)).sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(np.isnan(values), 0.0, values).sum(0) / counts
