"""How do layers, positions and wide ranges stay readable on an axis?"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from resstream.figures.labels import axis_title, thinned

MOST_LABELS = 24
"""Text labels on one axis; more would overlap on a narrow screen."""

_DECADES = (0.4, 2.2, 8)
"""Decades from which ticks stand at 1, 2 and 5, at each power of ten, and where Plotly likes."""

_SMALLEST = 1e-30
_EVERY_LAYER = 12
"""Up to here each layer has its tick; above, Plotly picks round steps that fit the width."""


def layer_axis(first: float, last: float, *, title: str = "layer") -> dict[str, Any]:
    """Axis over the layers `first` to `last`, at whole numbers and with half a layer of room."""
    axis: dict[str, Any] = {
        "title": {"text": axis_title(title)},
        "range": [first - 0.6, last + 0.6],
        "tickformat": "d",
        "zeroline": False,
        "showgrid": False,
    }
    if last - first < _EVERY_LAYER:
        axis |= {"tick0": 0, "dtick": 1}
    return axis


def token_axis(labels: Sequence[str]) -> dict[str, Any]:
    """Axis over positions that bears as many of the (escaped, unequal) `labels` as fit."""
    shown = thinned(len(labels), MOST_LABELS)
    return {
        "type": "category",
        "tickmode": "array",
        "tickvals": [labels[index] for index in shown],
        "tickangle": -90,
        "showgrid": False,
        "zeroline": False,
        "range": [-0.5, len(labels) - 0.5],
    }


def log_axis(values: Float[np.ndarray, "..."]) -> dict[str, Any]:
    """Logarithmic axis for `values` with a handful of ticks."""
    kept = values[np.isfinite(values) & (values > 0)]
    axis: dict[str, Any] = {"type": "log", "tickformat": "~g"}
    decades = float(np.log10(kept.max() / kept.min())) if kept.size else 0.0
    one_two_five, each, many = _DECADES
    if one_two_five < decades < many:
        axis["dtick"] = "D2" if decades < each else 1
    return axis


class SymlogAxis:
    """Linear near zero, logarithmic far from it, for signed values of very different size.

    A value ``x`` is drawn at ``asinh(x / knee)``; the tick labels are the values themselves.

    Args:
        values: All values that will be drawn, in any shape; non-finite ones are left out.
    """

    def __init__(self, values: Float[np.ndarray, "..."]) -> None:
        sizes = np.abs(values[np.isfinite(values)])
        sizes = sizes[sizes > 0]
        self._largest = float(sizes.max()) if sizes.size else 1.0
        middle = float(np.median(sizes)) if sizes.size else 1.0
        self.knee = _power_of_ten_below(max(middle, self._largest * 1e-4, _SMALLEST))
        """Size at which the axis turns from linear to logarithmic."""

    def place(self, values: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """Where `values` stand on the drawn axis."""
        return np.arcsinh(values / self.knee)

    def axis(self, low: float, high: float) -> dict[str, Any]:
        """Ticks at powers of ten from `low` to `high` (values, not places)."""
        decades = np.arange(round(np.log10(self.knee)), np.ceil(np.log10(self._largest)) + 1)
        powers = 10.0**decades
        ticks = np.concatenate([-powers[::-1], [0.0], powers])
        ticks = ticks[(ticks >= min(low, 0.0) * 1.001) & (ticks <= max(high, 0.0) * 1.001)]
        return {
            "tickmode": "array",
            "tickvals": self.place(ticks),
            "ticktext": [f"{tick:g}" for tick in ticks],
        }


def needs_symlog(values: Float[np.ndarray, "..."]) -> bool:
    """Whether the largest value would press the others flat on a linear axis."""
    sizes = np.abs(values[np.isfinite(values)])
    return sizes.size > 2 and float(sizes.max()) > 20 * float(np.median(sizes)) > 0


def _power_of_ten_below(value: float) -> float:
    return float(10.0 ** np.floor(np.log10(value)))
