"""Where in layers and positions is it, and which parts are like which?"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from resstream.figures.axes import MOST_LABELS, layer_axis, token_axis
from resstream.figures.labels import axis_title, escape_label, thinned, token_labels
from resstream.figures.theme import DIVERGING, SEQUENTIAL, new_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go

_ROW_PIXELS = 16
_COLOUR_BAR_PIXELS = 14


def layer_position_heatmap(
    values: Float[np.ndarray, "layer pos"],
    tokens: Sequence[str],
    *,
    value_title: str,
    diverging: bool,
    title: str | None = None,
) -> "go.Figure":
    """Draw one number for each layer (lowest at the bottom) and position.

    Layers below and above all that were computed are left out.

    Args:
        values: The numbers; NaN where nothing was computed, which is left blank.
        tokens: The tokens as text, one a position; made visible and escaped here.
        value_title: What the colour means, with the unit; for a diverging scale it must say what
            the sign means, such as "logit difference (blue: towards the answer)".
        diverging: Signed quantity: red and blue, centred on 0.  Otherwise a magnitude.
        title: Title of the figure; a page has its own.

    Returns:
        The figure.
    """
    labels = token_labels(tokens)
    colours = colour_axis(values, value_title, diverging=diverging)
    return _cells(values, labels, colours, row_title="layer", title=title)


def layer_head_heatmap(
    values: Float[np.ndarray, "layer head"],
    *,
    value_title: str,
    title: str | None = None,
) -> "go.Figure":
    """Draw one signed number for each layer (lowest at the bottom) and attention head.

    Args:
        values: The numbers; NaN where nothing was computed, which is left blank.
        value_title: What the colour means, with the unit and the meaning of its sign.
        title: Title of the figure; a page has its own.

    Returns:
        The figure.
    """
    heads = [f"head {head}" for head in range(values.shape[1])]
    colours = colour_axis(values, value_title, diverging=True)
    return _cells(values, heads, colours, row_title="layer", title=title)


def path_heatmap(
    values: Float[np.ndarray, "sender receiver"],
    senders: Sequence[str],
    receivers: Sequence[str],
    *,
    value_title: str,
    title: str | None = None,
) -> "go.Figure":
    """Draw one signed number for each sender (the first at the bottom) and receiver.

    Args:
        values: The numbers; NaN where there is no such path, which is left blank.
        senders: Names of the rows, as text.
        receivers: Names of the columns, as text.
        value_title: What the colour means, with the unit and the meaning of its sign.
        title: Title of the figure; a page has its own.

    Returns:
        The figure.
    """
    rows, columns = ([escape_label(name) for name in names] for names in (senders, receivers))
    colours = colour_axis(values, value_title, diverging=True)
    figure = _cells(values, columns, colours, row_title="from", title=title, rows=rows)
    figure.update_xaxes(title="receiver")
    shown = thinned(len(rows), MOST_LABELS)
    ticks: dict[str, Any] = {
        "tickmode": "array",
        "tickvals": list(shown),
        "ticktext": [rows[index] for index in shown],
        "range": [-0.5, len(rows) - 0.5],
    }
    figure.update_yaxes(ticks, title="sender")
    return figure


def _cells(
    values: Float[np.ndarray, "row column"],
    columns: Sequence[str],
    colours: Mapping[str, Any],
    *,
    row_title: str,
    title: str | None,
    rows: Sequence[str] | None = None,
) -> "go.Figure":
    computed = np.flatnonzero(np.isfinite(values).any(1))
    first, last = (0, len(values) - 1) if not computed.size else (computed[0], computed[-1])
    count = int(last - first) + 1
    figure = new_figure(
        title,
        height=150 + min(max(_ROW_PIXELS * count, 160), 560),
        headroom=_COLOUR_BAR_PIXELS,
    )
    names = [[name] * len(columns) for name in (rows or range(len(values)))]
    figure.add_heatmap(
        z=values,
        x=columns,
        coloraxis="coloraxis",
        hoverongaps=False,
        xgap=_gap(len(columns)),
        ygap=_gap(count),
        customdata=names,
        hovertemplate=f"{row_title} %{{customdata}} · %{{x}}: %{{z:.4g}}<extra></extra>",
    )
    figure.update_layout(coloraxis=colours)
    figure.update_xaxes(token_axis(columns))
    figure.update_yaxes(layer_axis(first, last, title=row_title))
    figure.update_yaxes(range=[first - 0.5, last + 0.5])
    return figure


def similarity_matrix(
    values: Float[np.ndarray, "part part"],
    labels: Sequence[str],
    *,
    value_title: str = "cosine (blue: same direction, red: opposed)",
    title: str | None = None,
) -> "go.Figure":
    """Draw how alike each two parts are, from -1 to 1, the first part in the lower left corner.

    Args:
        values: Similarity of each two parts.
        labels: Names of the parts, as text.
        value_title: What the colour means, with the meaning of its sign.
        title: Title of the figure; a page has its own.

    Returns:
        The figure.
    """
    names = [escape_label(label) for label in labels]
    figure = new_figure(title, height=580, headroom=_COLOUR_BAR_PIXELS)
    figure.add_heatmap(
        z=values,
        coloraxis="coloraxis",
        hoverongaps=False,
        customdata=[[f"{row} · {column}" for column in names] for row in names],
        hovertemplate="%{customdata}: %{z:.3f}<extra></extra>",
    )
    colours = colour_axis(values, value_title, diverging=True) | {"cmin": -1, "cmax": 1}
    figure.update_layout(coloraxis=colours)
    shown = thinned(len(names), MOST_LABELS)
    ticks = {
        "tickmode": "array",
        "tickvals": list(shown),
        "ticktext": [names[index] for index in shown],
        "showgrid": False,
        "constrain": "domain",
    }
    figure.update_xaxes(ticks, tickangle=-90)
    figure.update_yaxes(ticks, scaleanchor="x", constraintoward="top")
    return figure


def _gap(count: int) -> int:
    return 1 if count <= 24 else 0


def colour_axis(
    values: Float[np.ndarray, "..."], value_title: str, *, diverging: bool
) -> dict[str, Any]:
    """Colour bar and scale of a heat map: red and blue around 0, or a magnitude."""
    axis: dict[str, Any] = {"colorbar": {"title": {"text": axis_title(value_title)}}}
    if not diverging:
        return axis | {"colorscale": SEQUENTIAL}
    finite = np.abs(values[np.isfinite(values)])
    largest = float(finite.max()) if finite.size and finite.max() > 0 else 1.0
    return axis | {"colorscale": DIVERGING, "cmin": -largest, "cmax": largest}
