"""The table of a lens: tokens in cells, the last depth always there, text from outside escaped."""

import numpy as np
import pytest

from resstream.figures.lens_table import MOST_ROWS, LensCells, lens_table


def cells(depths: int, pos: int, text: str = " the") -> LensCells:
    shape = (depths, pos, 2)
    probs = np.linspace(0, 1, depths * pos * 2).reshape(shape)
    texts = [[[text, "b"] for _ in range(pos)] for _ in range(depths)]
    return LensCells(texts, np.arange(depths * pos * 2).reshape(shape), probs)


@pytest.mark.parametrize("depths", [1, 7, MOST_ROWS, MOST_ROWS + 1, 201])
def test_first_row_is_at_the_bottom_and_the_last_depth_is_there(depths):
    names = [f"d{index}" for index in range(depths)]
    figure = lens_table(cells(depths, 3), ["a", "b", "c"], names)
    (table,) = figure.data
    assert figure.layout.yaxis.ticktext[-1] == names[-1]
    assert len(table.z) == len(figure.layout.yaxis.ticktext) <= MOST_ROWS
    np.testing.assert_array_equal(table.z[-1], cells(depths, 3).probs[-1, :, 0])
    low, high = figure.layout.yaxis.range
    assert low < high, "depth 0 is at the bottom"


def test_cells_bear_tokens_and_the_hover_all_candidates():
    figure = lens_table(cells(2, 3), [" x", "\n", "c"], ["embed", "L0"])
    (table,) = figure.data
    assert table.text[0][0] == "␣the"
    assert table.customdata[1][1] == "L0 · ↵₁<br>␣the 0.727 (id 8)<br>b 0.818 (id 9)"


def test_text_from_outside_is_no_markup():
    figure = lens_table(cells(1, 1, "<script>alert(1)</script>"), ["<b>$x$"], ["<i>"])
    text = str(figure.to_json()).replace("\\u003c", "<").replace("<br>", "")
    assert "<script" not in text
    assert "<b>" not in text
    assert "<i>" not in text
    assert "$x" not in text


def test_many_positions_are_aggregated_not_drowned():
    figure = lens_table(cells(3, 500), ["a"] * 500, ["0", "1", "2"])
    (table,) = figure.data
    assert table.texttemplate is None
    assert len(figure.layout.xaxis.tickvals) < 60
    assert table.customdata[0][0].count("<br>") == 1
