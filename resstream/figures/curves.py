"""How does a number depend on a setting, such as depth, size or learning rate?"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from resstream.figures.axes import log_axis
from resstream.figures.labels import axis_title
from resstream.figures.profile import Series, layer_profile

if TYPE_CHECKING:
    import plotly.graph_objects as go

_ROOM = 0.04


def curves(
    series: Sequence[Series],
    *,
    value_title: str,
    at_title: str,
    log_value: bool = False,
    log_at: bool = False,
    title: str | None = None,
) -> "go.Figure":
    """Draw lines over a setting, with bands for the spread.

    Values that the axis can't hold are drawn as triangles on the lower edge, as in
    `resstream.figures.profile.layer_profile`.

    Args:
        series: The lines, at least one; `Series.at` is the setting.
        value_title: What is on the y axis, with its unit.
        at_title: What is on the x axis, with its unit.
        log_value: Logarithmic y axis.
        log_at: Logarithmic x axis.
        title: Title of the figure; a page has its own.

    Returns:
        The figure.
    """
    figure = layer_profile(
        series, value_title=value_title, layer_title=at_title, log=log_value, title=title
    )
    places = np.unique(np.concatenate([line.places for line in series]))
    axis = log_axis(places) if log_at else {"type": "linear", "tickformat": "~g"}
    low, high = (np.log10(places[[0, -1]]) if log_at else places[[0, -1]]).tolist()
    room = _ROOM * (high - low) or 0.5
    axis |= {"range": [low - room, high + room], "tick0": None, "dtick": axis.get("dtick")}
    figure.update_xaxes(axis, title_text=axis_title(at_title))
    return figure
