"""How far does one write stand from all others, in each number that accuses it?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from resstream.figures.axes import log_axis
from resstream.figures.labels import escape_label
from resstream.figures.theme import ALARM, NEUTRAL, new_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go

_ROW_PIXELS = 84
_SUBTITLE_PIXELS = 16


@dataclass(frozen=True, slots=True, eq=False)
class EvidenceRow:
    """One number, what it is held against, and the same number of all other writes."""

    name: str
    value: float
    threshold: float | None = None
    """Where the number starts to accuse."""
    interval: tuple[float, float] | None = None
    others: Float[np.ndarray, " write"] | None = None
    log: bool = False


def evidence_strip(rows: Sequence[EvidenceRow], *, title: str | None = None) -> "go.Figure":
    """Draw one strip a number: the other writes as ticks, the accused as a diamond, the threshold.

    Args:
        rows: The numbers, each on an axis of its own.
        title: Title of the figure; a page has its own.

    Returns:
        The figure.
    """
    from plotly.subplots import make_subplots

    height = 70 + _ROW_PIXELS * len(rows)
    figure = make_subplots(
        rows=len(rows),
        cols=1,
        subplot_titles=[escape_label(row.name) for row in rows],
        vertical_spacing=0.6 / max(len(rows), 1),
        figure=new_figure(title, height=height, headroom=_SUBTITLE_PIXELS),
    )
    explained: set[str] = set()
    for line, row in enumerate(rows, start=1):
        for trace in _row_traces(row):
            figure.add_scatter(**trace, showlegend=trace["name"] not in explained, row=line, col=1)
            explained.add(trace["name"])
        figure.update_xaxes(_row_axis(row), row=line, col=1)
    figure.update_annotations(x=0, xanchor="left", font_size=12)
    figure.update_yaxes(visible=False, range=[-1, 1])
    return figure


def _row_axis(row: EvidenceRow) -> dict[str, Any]:
    """Axis that holds everything of its row, with room at both ends."""
    low, high = _ends(row)
    axis = log_axis(np.array([low, high])) if row.log else {"nticks": 6}
    if row.log:
        low, high = np.log10(low), np.log10(high)
    return axis | {"range": [low, high]}


def _ends(row: EvidenceRow) -> tuple[float, float]:
    """Ends of the axis, as values."""
    others = () if row.others is None else row.others
    parts = [row.value, row.threshold, *(row.interval or ()), *others]
    values = np.array([part for part in parts if part is not None], dtype=np.float64)
    values = values[np.isfinite(values) & ((values > 0) | (not row.log))]
    if values.size == 0:
        return (0.1, 1.0) if row.log else (-1.0, 1.0)
    low, high = float(values.min()), float(values.max())
    if row.log:
        room = (high / low) ** 0.05 if high > low else 10.0
        return low / room, high * room
    room = 0.05 * (high - low) or 1.0
    return low - room, high + room


def _row_traces(row: EvidenceRow) -> list[dict[str, Any]]:
    traces: list[dict[str, Any]] = []
    if row.others is not None:
        marker = {"symbol": "line-ns", "size": 16, "line": {"width": 1.5, "color": NEUTRAL}}
        zeros = np.zeros(len(row.others))
        traces.append(_trace("other writes", row.others, zeros, marker=marker, opacity=0.7))
    if row.threshold is not None:
        line = {"color": NEUTRAL, "width": 2, "dash": "dash"}
        ends = np.array([-0.9, 0.9])
        traces.append(_trace("threshold", np.full(2, row.threshold), ends, line=line, mode="lines"))
    return [*traces, _value_trace(row)]


def _value_trace(row: EvidenceRow) -> dict[str, Any]:
    """The accused: a diamond, or an open triangle on the left edge if the axis can't hold it."""
    is_held = np.isfinite(row.value) and (row.value > 0 or not row.log)
    marker: dict[str, Any] = {"color": ALARM, "size": 12, "symbol": "diamond"}
    place = row.value
    if not is_held:
        marker |= {"symbol": "triangle-left-open", "line_width": 2}
        place = _ends(row)[0]
    trace = _trace("this write", np.array([place]), np.zeros(1), marker=marker, cliponaxis=False)
    trace["hovertemplate"] = f"{row.value:.4g}<extra>this write</extra>"
    if row.interval is not None:
        trace["error_x"] = {
            "type": "data",
            "symmetric": False,
            "array": [row.interval[1] - row.value],
            "arrayminus": [row.value - row.interval[0]],
            "thickness": 2,
        }
    return trace


def _trace(
    name: str, x: Float[np.ndarray, " point"], y: Float[np.ndarray, " point"], **style: Any
) -> dict[str, Any]:
    return {
        "name": name,
        "legendgroup": name,
        "x": x,
        "y": y,
        "mode": "markers",
        "hovertemplate": f"%{{x:.4g}}<extra>{name}</extra>",
        **style,
    }
