"""Tables of a narrow terminal: what must stay whole stays whole."""

import math

from rich.console import Console
from rich.table import Table

from resstream_cli.tables import cell, table


def drawn(made: Table, width: int) -> str:
    console = Console(width=width, highlight=False)
    with console.capture() as captured:
        console.print(made)
    return captured.get()


def test_numbers_and_words_of_headings_stay_whole() -> None:
    headings = ("participation ratio", "effective rank", "largest channel", "what is said of it")
    said = "a statement that is far too long for the place that is left to it here"
    shown = drawn(table(headings, [(19.83, -0.001234, 1.5e-06, said)]), 62)
    for piece in ("participation", "effective", "channel", "19.83", "-0.001234", "1.5e-06"):
        assert piece in shown
    assert said not in shown, "text is what gives way"


def test_a_quoted_token_is_not_broken_behind_its_quote() -> None:
    cells = [" Frank", " little", " garden", " and"]
    headings = [f"{i}\n{text!r}" for i, text in enumerate(cells)]
    shown = drawn(table(headings, [[f"{text!r} 0.12" for text in cells]]), 50)
    for text in cells:
        assert shown.count(repr(text)) == 2


def test_no_column_is_lost_where_nothing_fits() -> None:
    shown = drawn(table(["participation"] * 6, [(1.2345,) * 5 + (9,)]), 40)
    assert "9" in shown
    assert max(map(len, shown.splitlines())) <= 40


def test_headings_are_no_markup() -> None:
    assert "3:[bold]" in drawn(table(["3:[bold]"], [(1,)]), 40)


def test_nothing_is_a_dash_and_nan_is_nan() -> None:
    assert (cell(None), cell(math.nan), cell(0.123456)) == ("-", "nan", "0.1235")
