"""Where in layers and positions is it, and which parts are like which?"""

from collections.abc import Sequence
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
    layer_title: str = "layer",
    title: str | None = None,
) -> "go.Figure":
    """Draw one number for each layer (0 at the bottom) and position.

    Args:
        values: The numbers; NaN where nothing was computed, which is left blank.
        tokens: The tokens as text, one a position; made visible and escaped here.
        value_title: What the colour means, with the unit; for a diverging scale it must say what
            the sign means, such as "logit difference (blue: towards the answer)".
        diverging: Signed quantity: red and blue, centred on 0.  Otherwise a magnitude.
        layer_title: What is on the y axis.
        title: Title of the figure; a page has its own.

    Returns:
        The figure.
    """
    n_layers, _ = values.shape
    figure = new_figure(
        title,
        height=150 + min(max(_ROW_PIXELS * n_layers, 160), 560),
        headroom=_COLOUR_BAR_PIXELS,
    )
    labels = token_labels(tokens)
    figure.add_heatmap(
        z=values,
        x=labels,
        coloraxis="coloraxis",
        hoverongaps=False,
        xgap=_gap(len(tokens)),
        ygap=_gap(n_layers),
        hovertemplate=f"{layer_title} %{{y}} · %{{x}}: %{{z:.4g}}<extra></extra>",
    )
    figure.update_layout(coloraxis=colour_axis(values, value_title, diverging=diverging))
    figure.update_xaxes(token_axis(labels))
    figure.update_yaxes(layer_axis(0, n_layers - 1, title=layer_title))
    figure.update_yaxes(range=[-0.5, n_layers - 0.5])
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
