"""Bars accuse only where the interval does, and always add up."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from resstream.figures.bars import BarGroup, ablation_bars, attribution_bars
from resstream.figures.theme import ALARM, SERIES_COLOURS, faded


def group(name: str, effects: list[float], half: float) -> BarGroup:
    array = np.array(effects)
    return BarGroup(name, np.arange(len(effects)), array, array - half, array + half)


def bars(figure: Any, name: str) -> Any:
    return next(trace for trace in figure.data if trace.name == name and len(trace.x) > 1)


def test_colour_says_what_the_interval_says() -> None:
    figure: Any = ablation_bars([group("mlp", [0.5, 0.05, -0.05, -0.5], 0.1)])
    own = SERIES_COLOURS["mlp"]
    pale = faded(own, 0.4)
    assert list(bars(figure, "mlp").marker.color) == [own, pale, pale, ALARM]
    assert [t.name for t in figure.data if t.showlegend is None] == ["mlp", "unclear", "harmful"]


def test_legend_names_only_what_occurs() -> None:
    figure: Any = ablation_bars([group("attn", [0.5, 0.6], 0.1)])
    assert [t.name for t in figure.data if t.showlegend is None] == ["attn"]


def test_groups_share_a_layer_without_overlap() -> None:
    figure: Any = ablation_bars([group("attn", [0.1] * 3, 0.01), group("mlp", [0.2] * 3, 0.01)])
    attn, mlp = bars(figure, "attn"), bars(figure, "mlp")
    assert np.allclose(np.asarray(mlp.x) - np.asarray(attn.x), attn.width)
    assert np.allclose((np.asarray(attn.x) + np.asarray(mlp.x)) / 2, [0, 1, 2])


def test_one_giant_does_not_flatten_the_others() -> None:
    figure: Any = ablation_bars([group("mlp", [6.0, 0.02, 0.03, 0.02, -0.01], 0.001)])
    drawn = bars(figure, "mlp")
    assert drawn.y[1] > 0.1 * drawn.y[0]
    assert "logarithmic" in figure.layout.yaxis.title.text
    assert "6" in drawn.customdata[0]
    even: Any = ablation_bars([group("mlp", [0.1, 0.2], 0.01)])
    assert "logarithmic" not in even.layout.yaxis.title.text


def test_whiskers_reach_the_ends_of_the_interval() -> None:
    figure: Any = ablation_bars([group("attn", [0.3, 0.2], 0.05)])
    drawn = bars(figure, "attn")
    assert np.allclose(np.asarray(drawn.y) + np.asarray(drawn.error_y.array), [0.35, 0.25])
    assert np.allclose(np.asarray(drawn.y) - np.asarray(drawn.error_y.arrayminus), [0.25, 0.15])


@given(arrays(np.float64, st.integers(1, 120), elements=st.floats(-1e3, 1e3)), st.integers(1, 50))
def test_attribution_adds_up(values: np.ndarray, most: int) -> None:
    labels = [f"part <{index}>" for index in range(len(values))]
    figure: Any = attribution_bars(labels, values, value_title="share", most=most)
    (bar,) = figure.data
    assert np.isclose(np.sum(bar.x), values.sum(), atol=1e-6)
    assert len(bar.x) == min(len(values), most + 1)


def test_attribution_keeps_the_largest_in_their_order() -> None:
    values = np.array([1.0, -9.0, 0.1, 3.0])
    figure: Any = attribution_bars(["a", "<b>", "c", "d"], values, value_title="share", most=2)
    assert list(figure.layout.yaxis.ticktext) == ["&lt;b&gt;", "d", "2 others, summed"]
    assert figure.layout.yaxis.autorange == "reversed"
