"""Heatmaps say what their colours mean and stay readable."""

from typing import Any

import numpy as np
import pytest

from resstream.figures.axes import MOST_LABELS
from resstream.figures.evidence import EvidenceRow, evidence_strip
from resstream.figures.heatmap import (
    layer_head_heatmap,
    layer_position_heatmap,
    path_heatmap,
    similarity_matrix,
)


def test_signed_values_are_centred_on_zero() -> None:
    values = np.array([[-1.0, 0.5], [np.nan, 3.0]])
    figure: Any = layer_position_heatmap(
        values, ["a", "b"], value_title="effect (blue: useful)", diverging=True
    )
    colours = figure.layout.coloraxis
    assert (colours.cmin, colours.cmax) == (-3.0, 3.0)
    assert colours.colorscale[0][1] == "rgb(103,0,31)"  # the red end of RdBu is negative
    assert colours.colorbar.title.text == "effect (blue: useful)"


def test_magnitudes_are_sequential() -> None:
    figure: Any = layer_position_heatmap(
        np.ones((2, 3)), list("abc"), value_title="p", diverging=False
    )
    assert figure.layout.coloraxis.colorscale[0][1] == "#440154"
    assert figure.layout.coloraxis.cmin is None


def test_layer_0_is_at_the_bottom() -> None:
    figure: Any = layer_position_heatmap(
        np.ones((7, 2)), list("ab"), value_title="p", diverging=False
    )
    assert figure.layout.yaxis.range == (-0.5, 6.5)
    assert figure.layout.yaxis.autorange is None


def test_layers_that_were_not_computed_are_left_out() -> None:
    values = np.full((9, 2), np.nan)
    values[[4, 6]] = 1.0
    figure: Any = layer_head_heatmap(values, value_title="p (blue: up)")
    assert figure.layout.yaxis.range == (3.5, 6.5)
    assert list(figure.data[0].x) == ["head 0", "head 1"]


def test_paths_bear_the_names_of_both_ends() -> None:
    figure: Any = path_heatmap(
        np.ones((2, 3)), ["L4 attn", "<b>"], ["L5 mlp", "L6 mlp", "logits"], value_title="p (blue)"
    )
    assert list(figure.layout.yaxis.ticktext) == ["L4 attn", "&lt;b&gt;"]
    assert list(figure.layout.xaxis.tickvals) == ["L5 mlp", "L6 mlp", "logits"]
    assert figure.data[0].customdata[1][0] == "&lt;b&gt;"


def test_equal_tokens_stay_apart_and_literal() -> None:
    tokens = [" the", "<script>", " the"]
    figure: Any = layer_position_heatmap(np.ones((2, 3)), tokens, value_title="p", diverging=False)
    assert list(figure.data[0].x) == ["␣the₀", "&lt;script&gt;₁", "␣the₂"]


def test_a_hundred_layers_and_five_hundred_positions() -> None:
    figure: Any = layer_position_heatmap(
        np.ones((100, 500)), ["x"] * 500, value_title="p", diverging=False
    )
    assert len(figure.layout.xaxis.tickvals) <= MOST_LABELS
    assert figure.layout.height < 900
    assert figure.data[0].xgap == 0


def test_all_blank_is_no_error() -> None:
    figure: Any = layer_position_heatmap(
        np.full((2, 2), np.nan), list("ab"), value_title="p", diverging=True
    )
    assert figure.layout.coloraxis.cmax == 1.0


def test_similarity_runs_from_minus_one_to_one() -> None:
    labels = [f"<w{index}>" for index in range(60)]
    figure: Any = similarity_matrix(np.eye(60), labels)
    assert (figure.layout.coloraxis.cmin, figure.layout.coloraxis.cmax) == (-1, 1)
    assert "blue" in figure.layout.coloraxis.colorbar.title.text
    assert len(figure.layout.xaxis.ticktext) <= MOST_LABELS
    assert figure.layout.yaxis.scaleanchor == "x"


def test_strip_shows_value_threshold_and_the_others() -> None:
    others = np.array([0.1, 0.2])
    rows = [
        EvidenceRow("effect <x>", -0.3, 0.0, (-0.4, -0.2)),
        EvidenceRow("norm", 30.0, 8.0, None, others, log=True),
    ]
    figure: Any = evidence_strip(rows)
    assert [trace.name for trace in figure.data if trace.showlegend] == [
        "threshold",
        "this write",
        "other writes",
    ]
    assert figure.layout.annotations[0].text == "effect &lt;x&gt;"
    assert figure.layout.xaxis2.type == "log"
    low, high = figure.layout.xaxis.range
    assert low < -0.4
    assert high > 0.0


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_strip_bears_values_that_no_axis_holds(value: float) -> None:
    figure: Any = evidence_strip([EvidenceRow("x", value, log=True)])
    assert len(figure.data) == 1
