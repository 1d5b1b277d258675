"""Do curves keep their places, their axes and what an axis can't hold?"""

import numpy as np

from resstream.figures.curves import curves
from resstream.figures.intervals import IntervalRow, interval_rows
from resstream.figures.profile import Series


def series(values: list[float], at: list[float]) -> Series:
    return Series("loss", np.array(values, dtype=float), at=np.array(at, dtype=float))


def test_places_are_those_given_and_the_axis_holds_them() -> None:
    figure = curves([series([1, 2], [3, 48])], value_title="loss", at_title="blocks")
    assert figure.data[0].x.tolist() == [3, 48]
    low, high = figure.layout.xaxis.range
    assert low < 3 < 48 < high
    assert figure.layout.xaxis.title.text == "blocks"


def test_logarithmic_axis() -> None:
    figure = curves([series([1, 2], [10, 1000])], value_title="y", at_title="x", log_at=True)
    low, high = figure.layout.xaxis.range
    assert figure.layout.xaxis.type == "log"
    assert low < 1 < 3 < high < 4


def test_one_place_has_room_around_it() -> None:
    low, high = curves([series([1], [5])], value_title="y", at_title="x").layout.xaxis.range
    assert low < 5 < high


def test_rows_on_a_logarithmic_axis_keep_what_it_cannot_hold() -> None:
    rows = [
        IntervalRow("fine", 10.0, 1.0, 100.0),
        IntervalRow("zero", 0.0, 0.0, 0.0),
        IntervalRow("beyond", float("inf"), 10.0, float("inf")),
    ]
    (trace,) = interval_rows(rows, value_title="v", log=True).data
    assert list(trace.x) == [10.0, 0.1, 1000.0]
    assert list(trace.marker.symbol) == ["circle", "triangle-left-open", "triangle-left-open"]
    assert "inf" in trace.customdata[2]


def test_rows_that_fit_are_drawn_as_they_are() -> None:
    (trace,) = interval_rows([IntervalRow("a", -1.0, -2.0, 0.5)], value_title="v").data
    assert list(trace.x) == [-1.0]
    assert list(trace.error_x.array) == [1.5]
    assert list(trace.error_x.arrayminus) == [1.0]


def test_rows_of_which_none_fits() -> None:
    (trace,) = interval_rows([IntervalRow("a", 0.0, 0.0, 0.0)], value_title="v", log=True).data
    assert list(trace.x) == [0.1]
