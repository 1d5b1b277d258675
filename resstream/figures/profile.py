"""How does a number run through the layers, and which layer is out of line?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from resstream.figures.axes import layer_axis, log_axis
from resstream.figures.labels import axis_title, escape_label
from resstream.figures.marks import Mark, draw_marks
from resstream.figures.theme import (
    ALARM,
    NEUTRAL,
    faded,
    new_figure,
    series_colour,
    series_symbol,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

_FEW_POINTS = 60
"""Above this many layers the markers are drawn small."""


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One line of a profile: a typical value for each layer, and its spread if there is one."""

    name: str
    """Shown in the legend; `attn`, `mlp`, `mixer` and `block` have colours of their own."""
    values: Float[np.ndarray, " point"]
    low: Float[np.ndarray, " point"] | None = None
    """Lower end of the band, such as the 5th percentile over tokens."""
    high: Float[np.ndarray, " point"] | None = None
    at: Float[np.ndarray, " point"] | None = None
    """Where the points stand on the layer axis; None counts them from 0."""
    aside: bool = False
    """Context rather than matter: drawn grey and dashed."""

    @property
    def places(self) -> Float[np.ndarray, " point"]:
        """Where the points stand on the layer axis."""
        return np.arange(len(self.values), dtype=np.float64) if self.at is None else self.at


def layer_profile(
    series: Sequence[Series],
    *,
    value_title: str,
    layer_title: str = "layer",
    log: bool = False,
    marks: Sequence[Mark] = (),
    title: str | None = None,
) -> "go.Figure":
    """Draw lines over the layers, with bands for the spread and the culprits marked.

    Values that the axis can't hold are not lost: on a logarithmic axis zero and negative values,
    and on any axis NaN and infinities, are drawn as open triangles on the lower edge.

    Args:
        series: The lines, at least one.
        value_title: What is on the y axis, with its unit.
        layer_title: What is on the x axis.
        log: Logarithmic y axis.
        marks: Layers to point at; a mark that names a series also rings its point.
        title: Title of the figure; a page has its own.

    Returns:
        The figure.
    """
    figure = new_figure(title)
    for index, line in enumerate(series):
        _draw_band(figure, line, index, log=log)
        _draw_line(figure, line, index, log=log)
    places = np.concatenate([line.places for line in series])
    first, last = float(places.min()), float(places.max())
    figure.update_xaxes(layer_axis(first, last, title=layer_title))
    drawn = np.concatenate([_drawable(line.values, log=log) for line in series])
    figure.update_yaxes(log_axis(drawn) if log else {}, title_text=axis_title(value_title))
    _draw_lost(figure, series, log=log)
    draw_marks(figure, marks)
    return figure


def stream_growth(
    series: Sequence[Series],
    *,
    value_title: str = "norm of the stream",
    marks: Sequence[Mark] = (),
    title: str | None = None,
) -> "go.Figure":
    """Draw how the stream grows from the embedding (depth 0) to the end, on a logarithmic axis.

    Args:
        series: Norms by depth; the first token's series is best passed with ``aside=True``.
        value_title: What is on the y axis, with its unit.
        marks: Depths to point at.
        title: Title of the figure; a page has its own.

    Returns:
        The figure.
    """
    return layer_profile(
        series,
        value_title=value_title,
        layer_title="depth: layers passed (0 is the embedding)",
        log=True,
        marks=marks,
        title=title,
    )


def _colour(line: Series, index: int) -> str:
    return NEUTRAL if line.aside else series_colour(line.name, index)


def _drawable(values: Float[np.ndarray, " point"], *, log: bool) -> Float[np.ndarray, " point"]:
    """The values that the axis can hold, NaN elsewhere."""
    keep = np.isfinite(values) & ((values > 0) | (not log))
    return np.where(keep, values, np.nan)


def _draw_band(figure: "go.Figure", line: Series, index: int, *, log: bool) -> None:
    if line.low is None or line.high is None:
        return
    low, high = _drawable(line.low, log=log), _drawable(line.high, log=log)
    outline = _outline(line.places, low, high)
    figure.add_scatter(
        x=outline[0],
        y=outline[1],
        fill="toself",
        fillcolor=faded(_colour(line, index), 0.15),
        line_width=0,
        mode="lines",
        hoverinfo="skip",
        showlegend=False,
        legendgroup=line.name,
    )


def _outline(
    places: Float[np.ndarray, " point"],
    low: Float[np.ndarray, " point"],
    high: Float[np.ndarray, " point"],
) -> Float[np.ndarray, "xy corner"]:
    """Corners of the band: one closed polygon for each run of points that can be drawn."""
    keep = np.isfinite(low) & np.isfinite(high)
    runs = np.split(np.arange(len(keep)), np.flatnonzero(np.diff(keep)) + 1)
    gap = np.full((2, 1), np.nan)
    corners = [gap]
    for run in runs:
        if keep[run].all():
            there = np.stack([places[run], high[run]])
            back = np.stack([places[run], low[run]])[:, ::-1]
            corners += [there, back, gap]
    return np.concatenate(corners[1:] or [gap], axis=1)


def _draw_line(figure: "go.Figure", line: Series, index: int, *, log: bool) -> None:
    colour, name = _colour(line, index), escape_label(line.name)
    figure.add_scatter(
        x=line.places,
        y=_drawable(line.values, log=log),
        mode="lines+markers",
        name=name,
        legendgroup=line.name,
        line={"color": colour, "width": 1.6, "dash": "dot" if line.aside else "solid"},
        marker={
            "color": colour,
            "symbol": series_symbol(line.name, index),
            "size": 6 if len(line.values) <= _FEW_POINTS else 3,
        },
        customdata=_spread(line),
        hovertemplate=f"%{{x}} · {name}: %{{y:.4g}}%{{customdata}}<extra></extra>",
    )


def _spread(line: Series) -> list[str]:
    if line.low is None or line.high is None:
        return [""] * len(line.values)
    return [f" ({low:.3g} to {high:.3g})" for low, high in zip(line.low, line.high, strict=True)]


def _reason(values: Float[np.ndarray, " point"]) -> str:
    """Why the axis can't hold these values."""
    if np.isnan(values).all():
        return "undefined"
    return "zero" if not values.any() else "off the scale"


def _draw_lost(figure: "go.Figure", series: Sequence[Series], *, log: bool) -> None:
    """Triangles on the lower edge for the values that the axis can't hold."""
    for line in series:
        lost = ~np.isfinite(_drawable(line.values, log=log))
        if not lost.any():
            continue
        figure.add_scatter(
            x=line.places[lost],
            y=np.full(int(lost.sum()), 0.03),
            yaxis="y2",
            mode="markers",
            name=f"{escape_label(line.name)}: {_reason(line.values[lost])}",
            marker={"symbol": "triangle-down-open", "size": 11, "color": ALARM, "line_width": 2},
            customdata=[f"{value:g}" for value in line.values[lost]],
            hovertemplate=f"%{{x}} · {escape_label(line.name)}: %{{customdata}}<extra></extra>",
        )
        figure.update_layout(yaxis2={"overlaying": "y", "range": [0, 1], "visible": False})
