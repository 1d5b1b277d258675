"""How does a number change while a model trains: by layer, or as one line?"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from resstream.figures.axes import MOST_LABELS, log_axis
from resstream.figures.heatmap import colour_axis
from resstream.figures.labels import axis_title, escape_label, thinned
from resstream.figures.profile import Series
from resstream.figures.theme import new_figure, series_colour

if TYPE_CHECKING:
    import plotly.graph_objects as go

_ROW_PIXELS = 13
_COLOUR_BAR_PIXELS = 14
_STEP_TITLE = "step"
_FEWEST_TICKS = 3
_FEW_POINTS = 30


def layer_step_heatmap(
    values: Float[np.ndarray, "row step"],
    steps: Int[np.ndarray, " step"],
    labels: Sequence[str],
    *,
    value_title: str,
    signed: bool = False,
    title: str | None = None,
) -> "go.Figure":
    """Draw one number for each row (the first at the bottom) and step of a training run.

    Magnitudes have a logarithmic colour scale, since what is watched for grows by factors; zeros
    and what is not finite is left blank.

    Args:
        values: The numbers.
        steps: The step of each column.
        labels: Names of the rows, such as "3 attn"; they must differ.
        value_title: What the colour means, with its unit; for `signed` with the sign's meaning.
        signed: Red and blue centred on 0, on a linear scale.
        title: Title of the figure; a page has its own.

    Returns:
        The figure.
    """
    names = [escape_label(label) for label in labels]
    height = 150 + min(max(_ROW_PIXELS * len(names), 160), 620)
    figure = new_figure(title, height=height, headroom=_COLOUR_BAR_PIXELS)
    shown = values if signed else _log10(values)
    figure.add_heatmap(
        z=shown,
        x=steps,
        y=names,
        customdata=[[f"{value:.4g}" for value in row] for row in values],
        coloraxis="coloraxis",
        hoverongaps=False,
        hovertemplate="%{y} · step %{x}: %{customdata}<extra></extra>",
    )
    colours = colour_axis(values, value_title, diverging=True) if signed else None
    figure.update_layout(coloraxis=colours or _log_colours(shown, value_title))
    figure.update_xaxes(title_text=_STEP_TITLE, showgrid=False)
    figure.update_yaxes(
        type="category",
        tickmode="array",
        tickvals=[names[index] for index in thinned(len(names), MOST_LABELS)],
        showgrid=False,
    )
    return figure


def step_lines(
    lines: Sequence[Series], *, value_title: str, log: bool = False, title: str | None = None
) -> "go.Figure":
    """Draw lines over the steps of a training run; lines of few points have markers.

    Args:
        lines: The lines; `Series.at` is the step.
        value_title: What is on the y axis, with its unit.
        log: Logarithmic y axis.
        title: Title of the figure; a page has its own.

    Returns:
        The figure.
    """
    figure = new_figure(title)
    for index, line in enumerate(lines):
        figure.add_scatter(
            x=line.places,
            y=np.where(np.isfinite(line.values), line.values, np.nan),
            mode="lines" if len(line.values) > _FEW_POINTS else "lines+markers",
            name=escape_label(line.name),
            line={"color": series_colour(line.name, index), "width": 1.6},
            hovertemplate=f"step %{{x}} · {escape_label(line.name)}: %{{y:.4g}}<extra></extra>",
        )
    values = np.concatenate([line.values for line in lines])
    figure.update_yaxes(log_axis(values) if log else {}, title_text=axis_title(value_title))
    figure.update_xaxes(title_text=_STEP_TITLE)
    figure.update_layout(showlegend=len(lines) > 1)
    return figure


def _log10(values: Float[np.ndarray, "row step"]) -> Float[np.ndarray, "row step"]:
    keep = np.isfinite(values) & (values > 0)
    return np.where(keep, np.log10(np.where(keep, values, 1.0)), np.nan)


def _log_colours(logs: Float[np.ndarray, "row step"], value_title: str) -> dict[str, Any]:
    """A colour axis over logarithms whose ticks bear the values themselves."""
    axis = colour_axis(logs, value_title, diverging=False)
    finite = logs[np.isfinite(logs)]
    if not finite.size:
        return axis
    ticks = _ticks(float(finite.min()), float(finite.max()))
    named = {"tickvals": ticks, "ticktext": [f"{10**tick:.3g}" for tick in ticks]}
    return axis | {"colorbar": axis["colorbar"] | {"tickmode": "array"} | named}


def _ticks(low: float, high: float) -> list[float]:
    """Whole powers of ten between, or both ends and the middle where there are too few."""
    powers = [float(power) for power in range(int(np.ceil(low)), int(np.floor(high)) + 1)]
    if len(powers) < _FEWEST_TICKS:
        return [low, (low + high) / 2, high]
    return [powers[index] for index in thinned(len(powers), 8)]
