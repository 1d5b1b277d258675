"""How large is each of some effects, and how sure is it?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from resstream.figures.axes import log_axis
from resstream.figures.labels import axis_title, escape_label
from resstream.figures.theme import ALARM, POSITIVE, new_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go

_ROW_PIXELS = 24


@dataclass(frozen=True, slots=True)
class IntervalRow:
    """One measured value with its confidence interval."""

    name: str
    value: float
    low: float
    high: float
    alarming: bool = False


def interval_rows(
    rows: Sequence[IntervalRow], *, value_title: str, log: bool = False, title: str | None = None
) -> "go.Figure":
    """Draw one line an effect, with a dot at its value and a whisker for its interval.

    A value that the axis can't hold (NaN, infinite, or not positive on a logarithmic axis) is an
    open triangle at the end of the axis where it would be.

    Args:
        rows: The effects, the first on top.
        value_title: What is on the x axis, with its unit and the meaning of its sign.
        log: Logarithmic axis.
        title: Title of the figure; a page has its own.

    Returns:
        The figure.
    """
    figure = new_figure(title, height=94 + _ROW_PIXELS * len(rows))
    figure.update_layout(margin_t=30)
    places = np.arange(len(rows))
    ends = _ends(rows, log=log)
    for colour, wanted in ((POSITIVE, False), (ALARM, True)):
        chosen = np.array([row.alarming is wanted for row in rows], dtype=np.bool_)
        if chosen.any():
            picked = [row for row in rows if row.alarming is wanted]
            _draw_rows(figure, picked, places[chosen].tolist(), _Pen(colour, *ends))
    if not log:
        figure.add_vline(x=0, line_width=1, line_dash="dot", layer="below")
    figure.update_yaxes(
        range=[len(rows) - 0.5, -0.5],
        tickmode="array",
        tickvals=places,
        ticktext=[escape_label(row.name) for row in rows],
    )
    figure.update_xaxes(log_axis(np.array(ends)) if log else {}, title_text=axis_title(value_title))
    return figure


class _Pen(NamedTuple):
    """How rows are drawn, and the ends of the axis that they must fit on."""

    colour: str
    low: float
    high: float

    def place(self, value: float) -> float:
        """Where a value stands; NaN stands at the lower end."""
        return self.low if np.isnan(value) else min(max(value, self.low), self.high)


def _ends(rows: Sequence[IntervalRow], *, log: bool) -> tuple[float, float]:
    """Least and largest of what the axis can hold, with room for what it can't."""
    values = np.array([(row.value, row.low, row.high) for row in rows], dtype=np.float64)
    kept = values[np.isfinite(values) & ((values > 0) | (not log))]
    if not kept.size:
        return (0.1, 1.0) if log else (0.0, 1.0)
    low, high = float(kept.min()), float(kept.max())
    if kept.size < values.size:
        room = 10.0 if log else 0.1 * (high - low)
        return (low / room, high * room) if log else (low - room, high + room)
    return low, high


def _draw_rows(
    figure: "go.Figure", rows: Sequence[IntervalRow], places: list[int], pen: _Pen
) -> None:
    held = [pen.place(row.value) == row.value for row in rows]
    figure.add_scatter(
        x=[pen.place(row.value) for row in rows],
        y=places,
        mode="markers",
        marker={
            "size": 9,
            "color": pen.colour,
            "symbol": ["circle" if is_held else "triangle-left-open" for is_held in held],
        },
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [pen.place(row.high) - pen.place(row.value) for row in rows],
            "arrayminus": [pen.place(row.value) - pen.place(row.low) for row in rows],
            "thickness": 1.6,
            "width": 3,
        },
        customdata=[
            f"{escape_label(row.name)}: {row.value:.4g} ({row.low:.3g} to {row.high:.3g})"
            for row in rows
        ],
        hovertemplate="%{customdata}<extra></extra>",
        showlegend=False,
    )
