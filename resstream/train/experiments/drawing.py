"""How are the numbers of an experiment drawn?  From readings to the figures of the house."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from resstream.figures.bars import attribution_bars
from resstream.figures.curves import curves
from resstream.figures.intervals import IntervalRow, interval_rows
from resstream.figures.profile import Series
from resstream.train.experiments.experiment import Chart, Measured, Readings, Verdict

if TYPE_CHECKING:
    import plotly.graph_objects as go


def draw_chart(chart: Chart, readings: Readings) -> "go.Figure":
    """Lines over places, or one row a quantity; the range over seeds is the band or whisker."""
    shown = [item for item in readings.measured if _is_drawn(chart, item)]
    if chart.at_title is None:
        rows = [_row(item) for item in shown]
        return interval_rows(rows, value_title=chart.value_title, log=chart.log_value)
    names = dict.fromkeys(item.quantity for item in shown)
    return curves(
        [_series(name, readings, aside=name in chart.context) for name in names],
        value_title=chart.value_title,
        at_title=chart.at_title,
        log_value=chart.log_value,
        log_at=chart.log_at,
    )


def draw_verdicts(counts: Mapping[Verdict, int]) -> "go.Figure":
    """How many experiments have each verdict."""
    values = np.array([float(count) for count in counts.values()])
    return attribution_bars(list(counts), values, value_title="experiments")


def _is_drawn(chart: Chart, item: Measured) -> bool:
    if chart.quantities:
        return item.quantity in chart.quantities
    return (item.at is None) == (chart.at_title is None)


def _row(item: Measured) -> IntervalRow:
    place = "" if item.at is None else f", {item.at:g}"
    return IntervalRow(f"{item.quantity}{place}", item.value, item.low, item.high)


def _series(name: str, readings: Readings, *, aside: bool) -> Series:
    places = readings.places(name)
    items = [readings.at(name, place) for place in places]
    return Series(
        name,
        np.array([item.value for item in items], dtype=np.float64),
        low=np.array([item.low for item in items], dtype=np.float64),
        high=np.array([item.high for item in items], dtype=np.float64),
        at=np.array(places, dtype=np.float64),
        aside=aside,
    )
