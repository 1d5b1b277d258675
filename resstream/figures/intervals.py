"""How large is each of some effects, and how sure is it?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

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
    rows: Sequence[IntervalRow], *, value_title: str, title: str | None = None
) -> "go.Figure":
    """Draw one line an effect, with a dot at its value and a whisker for its interval.

    Args:
        rows: The effects, the first on top.
        value_title: What is on the x axis, with its unit and the meaning of its sign.
        title: Title of the figure; a page has its own.

    Returns:
        The figure.
    """
    figure = new_figure(title, height=94 + _ROW_PIXELS * len(rows))
    figure.update_layout(margin_t=30)
    places = np.arange(len(rows))
    for colour, wanted in ((POSITIVE, False), (ALARM, True)):
        chosen = np.array([row.alarming is wanted for row in rows], dtype=np.bool_)
        if chosen.any():
            picked = [row for row in rows if row.alarming is wanted]
            _draw_rows(figure, picked, places[chosen].tolist(), colour)
    figure.add_vline(x=0, line_width=1, line_dash="dot", layer="below")
    figure.update_yaxes(
        range=[len(rows) - 0.5, -0.5],
        tickmode="array",
        tickvals=places,
        ticktext=[escape_label(row.name) for row in rows],
    )
    figure.update_xaxes(title_text=axis_title(value_title))
    return figure


def _draw_rows(
    figure: "go.Figure", rows: Sequence[IntervalRow], places: list[int], colour: str
) -> None:
    figure.add_scatter(
        x=[row.value for row in rows],
        y=places,
        mode="markers",
        marker={"size": 9, "color": colour},
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [row.high - row.value for row in rows],
            "arrayminus": [row.value - row.low for row in rows],
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
