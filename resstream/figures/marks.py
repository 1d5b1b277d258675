"""How is a culprit pointed at in a figure over layers?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from resstream.figures.labels import escape_label, visible
from resstream.figures.theme import ALARM, add_headroom, faded

if TYPE_CHECKING:
    import plotly.graph_objects as go

_MOST_TEXTS = 4
_LINE = 19
_TEXT_LIMIT = 44


@dataclass(frozen=True, slots=True)
class Mark:
    """One layer that the reader must look at."""

    at: float
    """Where on the layer axis."""
    text: str
    """What is said above it, in a few words."""
    series: str | None = None
    """Which line of the figure is meant, if there is one of this name; its point gets a ring."""


def draw_marks(figure: "go.Figure", marks: Sequence[Mark]) -> None:
    """Point at layers: a band behind each, a ring on its line, and the first few texts on top.

    Works on every figure with layers on its x axis and makes the room that the texts need.

    Args:
        figure: Is changed.
        marks: What to point at, the most important first.
    """
    layout: Any = figure.layout
    middle = float(np.mean(layout.xaxis.range))
    for place in sorted({mark.at for mark in marks}):
        _draw_band(figure, place)
    for mark in marks:
        _draw_ring(figure, mark)
    spoken = marks[:_MOST_TEXTS]
    for level, mark in enumerate(reversed(spoken)):
        _say(figure, mark, level, to_right=mark.at <= middle)
    if spoken:
        add_headroom(figure, _LINE * len(spoken) + _room_for_legend(figure))


def _room_for_legend(figure: "go.Figure") -> int:
    """A line more where the legend takes two on a narrow screen."""
    traces: Any = figure.data
    explained = [trace for trace in traces if trace.name and trace.showlegend is not False]
    return _LINE if len(explained) > 2 else 0


def _draw_band(figure: "go.Figure", place: float) -> None:
    figure.add_shape(
        type="rect",
        xref="x",
        yref="paper",
        x0=place - 0.5,
        x1=place + 0.5,
        y0=0,
        y1=1,
        fillcolor=faded(ALARM, 0.16),
        line_width=0,
        layer="below",
    )


def _draw_ring(figure: "go.Figure", mark: Mark) -> None:
    if mark.series is None:
        return
    wanted = {"name": escape_label(mark.series), "mode": "lines+markers"}
    lines: Any = figure.select_traces(wanted)
    for line in lines:
        meant = np.asarray(line.x) == mark.at
        if not meant.any():
            continue
        figure.add_scatter(
            x=np.asarray(line.x)[meant],
            y=np.asarray(line.y)[meant],
            mode="markers",
            marker={"symbol": "circle-open", "size": 15, "color": ALARM, "line": {"width": 2.5}},
            hoverinfo="skip",
            showlegend=False,
        )


def _say(figure: "go.Figure", mark: Mark, level: int, *, to_right: bool) -> None:
    text = escape_label(_words(mark.text))
    figure.add_annotation(
        x=mark.at,
        y=1,
        yref="paper",
        yanchor="bottom",
        yshift=1 + _LINE * level,
        text=f"▾ {text}" if to_right else f"{text} ▾",
        showarrow=False,
        xanchor="left" if to_right else "right",
        xshift=-7 if to_right else 7,
    )


def _words(text: str) -> str:
    """`text` in one line with plain spaces, cut to what fits above a plot."""
    return visible(" ".join(text.split()), limit=_TEXT_LIMIT).replace("␣", " ")
