"""What does the stream say at each depth, token by token?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from resstream.figures.axes import token_axis
from resstream.figures.labels import escape_label, thinned, token_label, token_labels
from resstream.figures.theme import SEQUENTIAL, new_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go

MOST_ROWS = 40
"""Depths that are drawn; of more, evenly spaced ones and always the last."""

_MOST_TEXTS = 24
"""Positions up to which the tokens stand in the cells; beyond, colour and hover remain."""

_MOST_HOVERS = 64
"""Positions up to which the hover names all candidates; beyond, only the first."""

_ROW_PIXELS = 20


@dataclass(frozen=True, slots=True, eq=False)
class LensCells:
    """The likeliest tokens at each depth and position."""

    texts: Sequence[Sequence[Sequence[str]]]
    """Their texts, ``[depth][pos][k]``; made visible and escaped by the figure."""
    ids: Int[np.ndarray, "depth pos k"]
    probs: Float[np.ndarray, "depth pos k"]


def lens_table(
    cells: LensCells,
    tokens: Sequence[str],
    depths: Sequence[str],
    *,
    title: str | None = None,
) -> "go.Figure":
    """Draw the likeliest token in each cell, the embedding at the bottom, coloured by probability.

    Args:
        cells: What is said, at each depth and position.
        tokens: The prompt, one text a position.
        depths: Name of each depth.
        title: Title of the figure; a page has its own.

    Returns:
        The figure.
    """
    rows = _rows(len(depths))
    labels = token_labels(tokens)
    n_pos = len(tokens)
    figure = new_figure(title, height=150 + _ROW_PIXELS * len(rows), headroom=14)
    figure.add_heatmap(
        z=cells.probs[rows, :, 0],
        x=labels,
        coloraxis="coloraxis",
        xgap=1 if n_pos <= _MOST_HOVERS else 0,
        ygap=1,
        text=[
            [token_label(cells.texts[row][pos][0], limit=9) for pos in range(n_pos)] for row in rows
        ],
        texttemplate="%{text}" if n_pos <= _MOST_TEXTS else None,
        textfont={"size": 11},
        customdata=[
            [_hover(cells, row, pos, f"{depths[row]} · {labels[pos]}") for pos in range(n_pos)]
            for row in rows
        ],
        hovertemplate="%{customdata}<extra></extra>",
    )
    bar = {"title": {"text": "probability of the likeliest next token"}}
    figure.update_layout(
        coloraxis={"colorscale": SEQUENTIAL, "cmin": 0, "cmax": 1, "colorbar": bar}
    )
    figure.update_xaxes(token_axis(labels))
    figure.update_yaxes(
        title_text="read after",
        tickmode="array",
        tickvals=list(range(len(rows))),
        ticktext=[escape_label(depths[row]) for row in rows],
        range=[-0.5, len(rows) - 0.5],
        showgrid=False,
    )
    return figure


def _rows(n_depths: int) -> list[int]:
    if n_depths <= MOST_ROWS:
        return list(range(n_depths))
    # Counted from the end, so that the last depth, the model's own answer, is always there.
    return sorted(n_depths - 1 - index for index in thinned(n_depths, MOST_ROWS))


def _hover(cells: LensCells, row: int, pos: int, place: str) -> str:
    n_pos, n_best = cells.probs.shape[1:]
    shown = range(n_best if n_pos <= _MOST_HOVERS else 1)
    lines = [
        f"{token_label(cells.texts[row][pos][k], limit=24)} {cells.probs[row, pos, k]:.3g} "
        f"(id {cells.ids[row, pos, k]})"
        for k in shown
    ]
    return "<br>".join([place, *lines])
