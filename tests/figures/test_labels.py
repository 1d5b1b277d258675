"""Labels show text from outside literally, whatever is in it."""

import html
import unicodedata
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resstream.figures.labels import (
    axis_title,
    escape_label,
    thinned,
    token_label,
    token_labels,
    visible,
)


@given(st.text(st.characters(exclude_categories=("C", "Zl", "Zp"))))
def test_escaping_loses_nothing_and_leaves_no_markup(text: str) -> None:
    escaped = escape_label(text.replace("\u00a0", " "))
    assert not set(escaped) & set("<>$")
    assert "\\u" in escaped or html.unescape(escaped) == text.replace("\u00a0", " ")


@given(st.text())
def test_nothing_unseen_is_left_but_blanks(text: str) -> None:
    categories = {unicodedata.category(char) for char in escape_label(text) if char != " "}
    assert categories & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"} == set()


@given(st.text())
def test_nothing_stays_invisible(text: str) -> None:
    shown = visible(text)
    unseen = {
        char for char in shown if unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp", "Zs")
    }
    assert unseen == set()
    assert not (shown and unicodedata.combining(shown[0]))


@pytest.mark.parametrize(
    ("token", "label"),
    [
        (" the", "␣the₃"),
        ("\n", "↵₃"),
        ("\t\r", "⇥␍₃"),
        ("<b>", "&lt;b&gt;₃"),
        ("\u202eevil", "\\u202eevil₃"),
        ("\u0301x", "◌\u0301x₃"),
        ("", "₃"),
        ("x" * 40, "x" * 13 + "…₃"),
    ],
)
def test_token_label(token: str, label: str) -> None:
    assert token_label(token, 3) == label


@given(st.lists(st.text(max_size=20), max_size=30))
def test_token_labels_differ(tokens: list[str]) -> None:
    labels = token_labels(tokens)
    assert len(set(labels)) == len(tokens)


@given(st.integers(0, 100_000), st.integers(1, 60))
def test_thinned_is_even_and_bounded(count: int, most: int) -> None:
    shown = list(thinned(count, most))
    assert len(shown) <= most
    assert len({b - a for a, b in pairwise(shown)}) <= 1
    assert not count or shown[0] == 0
    assert count > most or len(shown) == count


def test_axis_titles_are_broken_and_escaped() -> None:
    title = axis_title("effect of <this> write on the loss of the text, nats per token")
    assert "&lt;this&gt;" in title
    assert max(len(line) for line in title.split("<br>")) <= 50
    assert "<br>" in title
