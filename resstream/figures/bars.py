"""What was each write worth, and which token, layer or head spoke for the answer?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from resstream.figures.axes import SymlogAxis, layer_axis, needs_symlog
from resstream.figures.labels import axis_title, escape_label
from resstream.figures.marks import Mark, draw_marks
from resstream.figures.theme import (
    ALARM,
    NEGATIVE,
    NEUTRAL,
    POSITIVE,
    faded,
    new_figure,
    series_colour,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

_UNSURE = 0.4
_SYMLOG = "<br>(linear near 0, then logarithmic)"


@dataclass(frozen=True, slots=True, eq=False)
class BarGroup:
    """The effects of one kind of write over the layers."""

    name: str
    """Shown in the legend; `attn`, `mlp`, `mixer` and `block` have colours of their own."""
    layers: Int[np.ndarray, " bar"]
    effects: Float[np.ndarray, " bar"]
    """Ablated minus clean."""
    low: Float[np.ndarray, " bar"]
    """Lower end of each confidence interval."""
    high: Float[np.ndarray, " bar"]


def ablation_bars(
    groups: Sequence[BarGroup],
    *,
    marks: Sequence[Mark] = (),
    value_title: str = "effect on the loss, nats per token",
    title: str | None = None,
) -> "go.Figure":
    """Draw the effect of taking each write away, with its confidence interval.

    A bar is pale (unclear) where its interval holds 0, and has the alarm colour (harmful) where the
    whole interval lies below 0: the model is better without that write.  Where one effect would
    press the others flat, the axis is linear near 0 and logarithmic further out, and says so.

    Args:
        groups: The effects, at least one group; each has its colour and its place in a layer.
        marks: Layers to point at.
        value_title: What is on the y axis, with its unit.
        title: Title of the figure; a page has its own.

    Returns:
        The figure.
    """
    figure = new_figure(title)
    effects = np.concatenate([group.effects for group in groups])
    low = np.concatenate([group.low for group in groups])
    high = np.concatenate([group.high for group in groups])
    layers = np.concatenate([group.layers for group in groups])
    axis = SymlogAxis(np.concatenate([effects, low, high])) if needs_symlog(effects) else None
    for index, group in enumerate(groups):
        _draw_group(figure, group, _Place(index, len(groups)), axis)
        _explain(figure, escape_label(group.name), series_colour(group.name, index))
    if np.any((low <= 0) & (high >= 0)):
        _explain(figure, "unclear", faded(NEUTRAL, _UNSURE))
    if np.any(high < 0):
        _explain(figure, "harmful", ALARM)
    said = axis_title(value_title)
    if axis is not None:
        figure.update_yaxes(axis.axis(float(np.nanmin(low)), float(np.nanmax(high))))
        said += _SYMLOG
    first, last = float(layers.min()), float(layers.max())
    figure.update_xaxes(layer_axis(first, last))
    figure.update_yaxes(title_text=said, zeroline=True)
    figure.update_layout(barmode="overlay")
    draw_marks(figure, marks)
    return figure


class _Place(NamedTuple):
    """Which of how many groups share a layer."""

    group: int
    n_groups: int

    @property
    def width(self) -> float:
        return 0.8 / self.n_groups

    @property
    def offset(self) -> float:
        return (self.group - (self.n_groups - 1) / 2) * self.width


def _draw_group(
    figure: "go.Figure", group: BarGroup, place: _Place, axis: SymlogAxis | None
) -> None:
    own = series_colour(group.name, place.group)
    name = escape_label(group.name)
    triples = list(zip(group.effects, group.low, group.high, strict=True))
    drawn, low, high = (
        part if axis is None else axis.place(part)
        for part in (group.effects, group.low, group.high)
    )
    figure.add_bar(
        x=group.layers + place.offset,
        y=drawn,
        width=place.width,
        name=name,
        showlegend=False,
        marker={"color": [_bar_colour(own, lo, hi) for _, lo, hi in triples], "line_width": 0},
        error_y={
            "type": "data",
            "symmetric": False,
            "array": high - drawn,
            "arrayminus": drawn - low,
            "thickness": 1,
            "width": 0,
        },
        customdata=[
            f"layer {layer} · {name}: {effect:+.4g} ({lo:.3g} to {hi:.3g})"
            for layer, (effect, lo, hi) in zip(group.layers, triples, strict=True)
        ],
        hovertemplate="%{customdata}<extra></extra>",
    )


def _explain(figure: "go.Figure", text: str, colour: str) -> None:
    """Put a colour into the legend."""
    figure.add_bar(x=[None], y=[None], name=text, marker_color=colour)


def _bar_colour(own: str, low: float, high: float) -> str:
    if high < 0:
        return ALARM
    return own if low > 0 else faded(own, _UNSURE)


def attribution_bars(
    labels: Sequence[str],
    values: Float[np.ndarray, " part"],
    *,
    value_title: str,
    most: int = 40,
    title: str | None = None,
) -> "go.Figure":
    """Draw what each part contributed, as horizontal bars in the order given (first on top).

    Where there are more than `most` parts, the largest by size are shown and the others are summed
    into one bar at the end, so that the bars always add up to the whole.

    Args:
        labels: Names of the parts, as text.
        values: Contribution of each part.
        value_title: What is on the x axis, with its unit and the meaning of its sign.
        most: How many bars are shown.
        title: Title of the figure; a page has its own.

    Returns:
        The figure.
    """
    shown = np.sort(np.argsort(-np.abs(values), kind="stable")[:most])
    names = [str(labels[index]) for index in shown]
    sizes = values[shown]
    if len(values) > most:
        names.append(f"{len(values) - most} others, summed")
        sizes = np.append(sizes, values.sum() - sizes.sum())
    figure = new_figure(title, height=84 + 20 * len(names))
    figure.update_layout(margin_t=30)
    rows = np.arange(len(names))
    figure.add_bar(
        x=sizes,
        y=rows,
        orientation="h",
        marker={"color": [POSITIVE if s >= 0 else NEGATIVE for s in sizes]},
        hovertemplate="%{customdata}: %{x:.4g}<extra></extra>",
        customdata=[escape_label(name) for name in names],
        showlegend=False,
    )
    figure.update_yaxes(
        autorange="reversed",
        tickmode="array",
        tickvals=rows,
        ticktext=[escape_label(name) for name in names],
        showgrid=False,
    )
    figure.update_xaxes(title_text=axis_title(value_title), zeroline=True)
    return figure
