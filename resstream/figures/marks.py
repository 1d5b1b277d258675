"""How is a culprit pointed at in a figure over layers?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from resstream.figures.labels import escape_label, visible
from resstream.figures.theme import ALARM, faded

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
    """Which series of the figure is meant; None marks the layer as a whole."""


def headroom(marks: Sequence[Mark]) -> int:
    """Pixels that the texts of `marks` need above the plot."""
    return _LINE * min(len(marks), _MOST_TEXTS)


def draw_marks(figure: "go.Figure", marks: Sequence[Mark], *, middle: float) -> None:
    """Draw a band behind each marked layer, and the texts of the first few above the plot.

    Args:
        figure: Figure with layers on its x axis, made with `headroom(marks)`.
        marks: What to point at, the most important first.
        middle: Centre of the layer axis: texts of layers right of it extend to the left.
    """
    for place in sorted({mark.at for mark in marks}):
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
    spoken = marks[:_MOST_TEXTS]
    for level, mark in enumerate(reversed(spoken)):
        _say(figure, mark, level, to_right=mark.at <= middle)


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
