"""Profiles lose no value and point at the culprit."""

from typing import Any

import numpy as np
import pytest

from resstream.figures.marks import Mark
from resstream.figures.profile import Series, layer_profile, stream_growth
from resstream.figures.theme import ALARM


def values(n: int, **changes: float) -> np.ndarray:
    array = np.linspace(0.1, 0.4, n)
    for place, value in changes.items():
        array[int(place[1:])] = value
    return array


def traces(figure: Any, name: str) -> list[Any]:
    return [trace for trace in figure.data if trace.name == name]


def test_zero_and_nan_are_drawn_though_the_axis_cannot_hold_them() -> None:
    line = Series("attn", values(6, _2=0.0, _4=np.nan))
    figure: Any = layer_profile([line], value_title="norm", log=True)
    (lost,) = traces(figure, "attn: off the scale")
    assert list(lost.x) == [2, 4]
    assert list(lost.customdata) == ["0", "nan"]
    assert figure.layout.yaxis.type == "log"
    assert figure.layout.yaxis2.type is None
    (drawn,) = traces(figure, "attn")
    assert np.flatnonzero(np.isnan(drawn.y)).tolist() == [2, 4]


def test_zero_is_no_loss_on_a_linear_axis() -> None:
    figure: Any = layer_profile([Series("mlp", values(4, _1=0.0))], value_title="cosine")
    assert [trace.name for trace in figure.data] == ["mlp"]


def test_band_is_one_closed_polygon_for_each_run() -> None:
    line = Series("mlp", values(5), low=values(5, _2=0.0) / 2, high=values(5) * 2)
    figure: Any = layer_profile([line], value_title="norm", log=True)
    band = figure.data[0]
    assert band.fill == "toself"
    pieces = np.split(np.asarray(band.x), np.flatnonzero(np.isnan(band.x)) + 1)
    corners = [piece[np.isfinite(piece)].tolist() for piece in pieces]
    assert corners == [[0, 1, 1, 0], [3, 4, 4, 3], []]


def test_culprit_is_ringed_banded_and_named() -> None:
    lines = [Series("attn", values(30)), Series("mlp", values(30, _15=9.0))]
    mark = Mark(15, "mlp 15 <polluted>", "mlp")
    figure: Any = layer_profile(lines, value_title="norm", log=True, marks=[mark])
    rings = [t for t in figure.data if t.marker.symbol == "circle-open"]
    assert [(list(r.x), list(r.y), r.marker.color) for r in rings] == [([15], [9.0], ALARM)]
    assert [(s.x0, s.x1) for s in figure.layout.shapes] == [(14.5, 15.5)]
    (note,) = figure.layout.annotations
    assert "mlp 15 &lt;polluted&gt;" in note.text


def test_many_marks_do_not_drown_the_figure() -> None:
    marks = [Mark(layer, "x" * 100, "attn") for layer in range(50)]
    figure: Any = layer_profile([Series("attn", values(100))], value_title="norm", marks=marks)
    assert len(figure.layout.annotations) == 4
    assert max(len(note.text) for note in figure.layout.annotations) < 60
    assert len(figure.layout.shapes) == 50
    plain: Any = layer_profile([Series("attn", values(100))], value_title="norm")
    margin = figure.layout.margin.t - plain.layout.margin.t
    assert margin == figure.layout.height - plain.layout.height > 0


def test_growth_counts_depth_and_keeps_sinks_aside() -> None:
    sink = Series("sink", values(7) * 1e4, aside=True)
    figure: Any = stream_growth([Series("body", values(7)), sink])
    assert figure.layout.yaxis.type == "log"
    assert "embedding" in figure.layout.xaxis.title.text
    (aside,) = traces(figure, "sink")
    assert aside.line.dash == "dot"


def test_places_may_lie_between_layers() -> None:
    line = Series("stream", values(4), at=np.array([0.0, 0.5, 1.0, 1.5]))
    figure: Any = layer_profile([line], value_title="norm")
    assert list(figure.data[0].x) == [0.0, 0.5, 1.0, 1.5]
    assert figure.layout.xaxis.range == (-0.6, 2.1)


def test_untrusted_names_are_escaped() -> None:
    figure: Any = layer_profile([Series("<i>x</i>", values(3))], value_title="a < b")
    assert figure.data[0].name == "&lt;i&gt;x&lt;/i&gt;"
    assert "<i>" not in figure.data[0].hovertemplate
    assert figure.layout.yaxis.title.text == "a &lt; b"


@pytest.mark.parametrize("log", [True, False])
def test_nothing_finite_at_all_still_makes_a_figure(log: bool) -> None:
    figure: Any = layer_profile([Series("attn", np.full(4, np.nan))], value_title="norm", log=log)
    assert list(traces(figure, "attn: undefined")[0].x) == [0, 1, 2, 3]


def test_reason_says_what_the_axis_cannot_hold() -> None:
    figure: Any = layer_profile([Series("mlp", values(4, _2=0.0))], value_title="norm", log=True)
    assert traces(figure, "mlp: zero")
