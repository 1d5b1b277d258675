"""Axes hold a hundred layers, hundreds of positions and many decades."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from resstream.figures.axes import (
    MOST_LABELS,
    SymlogAxis,
    layer_axis,
    log_axis,
    needs_symlog,
    token_axis,
)


def test_few_layers_have_a_tick_each_and_many_do_not() -> None:
    assert layer_axis(0, 5)["dtick"] == 1
    assert "dtick" not in layer_axis(0, 99)
    assert layer_axis(0, 99)["range"] == [-0.6, 99.6]


def test_tokens_are_thinned() -> None:
    labels = [f"t{index}" for index in range(500)]
    shown = token_axis(labels)["tickvals"]
    assert shown[:2] == ["t0", "t50"]
    assert len(shown) <= MOST_LABELS
    assert token_axis(labels[:10])["tickvals"] == labels[:10]


def test_log_axis_has_ticks_for_narrow_and_for_wide_ranges() -> None:
    assert "dtick" not in log_axis(np.array([0.5, 0.9]))
    assert log_axis(np.array([0.1, 0.9]))["dtick"] == "D2"
    assert log_axis(np.array([0.001, np.nan, 0.0, 10.0]))["dtick"] == 1
    assert "dtick" not in log_axis(np.array([1e-12, 1.0]))
    assert log_axis(np.array([0.0]))["type"] == "log"


finite = st.floats(-1e6, 1e6)


@given(arrays(np.float64, st.integers(2, 30), elements=finite))
def test_symlog_keeps_order_and_sign(values: np.ndarray) -> None:
    places = SymlogAxis(values).place(values)
    assert np.all(np.diff(places[np.argsort(values)]) >= 0)
    assert np.array_equal(
        np.sign(places[np.abs(values) > 1e-6]), np.sign(values[np.abs(values) > 1e-6])
    )


def test_symlog_ticks_stand_where_their_values_are() -> None:
    axis = SymlogAxis(np.array([-0.5, 0.02, 0.03, 0.04, 6.0]))
    ticks = axis.axis(-0.5, 6.0)
    values = np.array([float(text) for text in ticks["ticktext"]])
    assert ticks["ticktext"] == ["-0.1", "-0.01", "0", "0.01", "0.1", "1"]
    np.testing.assert_allclose(ticks["tickvals"], axis.place(values))


@pytest.mark.parametrize(
    ("values", "needed"),
    [([0.1, 0.2, 0.3], False), ([0.01, -0.01, 0.02, 6.0], True), ([0.0, 0.0, 0.0, 9.0], False),
     ([5.0], False), ([np.nan, 0.1, 0.1, 3.0], True)],
)  # fmt: skip
def test_symlog_is_for_outliers(values: list[float], needed: bool) -> None:
    assert needs_symlog(np.array(values)) is needed
