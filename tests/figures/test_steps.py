"""Figures over the steps of a training run."""

import json
from typing import Any

import numpy as np
import pytest

from resstream.figures.profile import Series
from resstream.figures.steps import layer_step_heatmap, step_lines

STEPS = np.arange(1, 5)


def plain(figure: Any) -> Any:
    return json.loads(figure.to_json())


def test_magnitudes_are_drawn_by_their_logarithm_and_ticked_by_value() -> None:
    values = np.array([[1e-3, 1e-2, 0.1, 1.0], [10.0, 0.0, np.nan, np.inf]])
    figure: Any = layer_step_heatmap(values, STEPS, ["0 attn", "1 attn"], value_title="norm")
    shown = np.asarray(figure.data[0].z, dtype=float)
    assert shown[0] == pytest.approx([-3, -2, -1, 0])
    assert np.isnan(shown[1, 1:]).all(), "what has no logarithm is left blank"
    assert figure.data[0].customdata[1][3] == "inf"
    bar = figure.layout.coloraxis.colorbar
    assert list(bar.ticktext) == ["0.001", "0.01", "0.1", "1", "10"]
    assert list(bar.tickvals) == [-3, -2, -1, 0, 1]


def test_a_narrow_range_has_ticks_too() -> None:
    values = np.array([[2.0, 2.5, 3.0, 4.0]])
    figure: Any = layer_step_heatmap(values, STEPS, ["0 attn"], value_title="norm")
    ticks = [float(text) for text in figure.layout.coloraxis.colorbar.ticktext]
    assert ticks[0] == pytest.approx(2.0)
    assert ticks[-1] == pytest.approx(4.0)
    assert len(ticks) == 3


def test_signed_values_are_centred_on_zero() -> None:
    values = np.array([[-0.2, 0.1, 0.0, 0.4]])
    figure: Any = layer_step_heatmap(values, STEPS, ["0"], value_title="cosine", signed=True)
    assert (figure.layout.coloraxis.cmin, figure.layout.coloraxis.cmax) == (-0.4, 0.4)
    assert np.asarray(figure.data[0].z)[0] == pytest.approx(values[0])


def test_labels_are_escaped_and_thinned() -> None:
    labels = [f"{layer} <b>" for layer in range(100)]
    values = np.ones((100, 4))
    figure: Any = layer_step_heatmap(values, STEPS, labels, value_title="norm")
    assert figure.data[0].y[0] == "0 &lt;b&gt;"
    assert len(figure.layout.yaxis.tickvals) <= 24


def test_nothing_to_draw_is_a_figure() -> None:
    figure = layer_step_heatmap(np.full((1, 4), np.nan), STEPS, ["0"], value_title="norm")
    assert plain(figure)["data"]


def test_lines_over_steps() -> None:
    training = Series("training", np.array([3.0, np.inf, 2.0, 1.0]), at=STEPS.astype(float))
    held_out = Series("validation", np.array([2.0]), at=np.array([4.0]))
    figure: Any = step_lines([training, held_out], value_title="loss")
    assert np.isnan(figure.data[0].y[1])
    assert figure.data[1].x[0] == 4
    assert figure.layout.showlegend
    assert not step_lines([training], value_title="loss").layout.showlegend
