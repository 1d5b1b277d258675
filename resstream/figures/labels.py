"""How is text from outside shown in a figure?

Plotly reads labels as pseudo-HTML and, where MathJax is present, as TeX; tokens and names come from
users' texts and checkpoints.  Everything that is not written in this package goes through here.
"""

import textwrap
import unicodedata
from collections.abc import Iterable, Sequence

_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "$": "&#36;"}
_VISIBLE = {" ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍"}
_SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
_UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"}
_ELLIPSIS = "…"
_LINE_CHARS = 44


def escape_label(text: str) -> str:
    """`text` as Plotly shows it literally: no markup, no TeX, nothing unseen but blanks."""
    return "".join(_ENTITIES.get(char) or _seen(char) for char in text)


def _seen(char: str) -> str:
    """The character, or its number if it can't be seen."""
    if char != " " and unicodedata.category(char) in _UNSEEN:
        return f"\\u{ord(char):04x}"
    return char


def axis_title(text: str) -> str:
    """`text` escaped, and broken into lines that fit a narrow screen."""
    return "<br>".join(escape_label(line) for line in textwrap.wrap(text, _LINE_CHARS))


def visible(text: str, *, limit: int | None = None) -> str:
    """`text` with spaces, breaks and invisible characters made visible, cut to `limit` characters.

    Characters that can't be seen, or that turn the direction of writing, are shown by their number,
    so that no token can look like another or disorder the labels beside it.  Not escaped: this is
    for HTML and terminals too.
    """
    shown = "".join(_VISIBLE.get(char) or _seen(char) for char in text)
    if shown and unicodedata.combining(shown[0]):
        shown = "◌" + shown
    if limit is not None and len(shown) > limit:
        shown = shown[: limit - 1] + _ELLIPSIS
    return shown


def token_label(token: str, index: int | None = None, *, limit: int = 14) -> str:
    """Label of one token for a figure, with its position as a suffix so that labels differ.

    >>> token_label(" the", 12)
    '␣the₁₂'
    """
    suffix = "" if index is None else str(index).translate(_SUBSCRIPTS)
    return escape_label(visible(token, limit=limit)) + suffix


def token_labels(tokens: Iterable[str], *, limit: int = 14) -> list[str]:
    """Labels of a sequence of tokens, each with its position."""
    return [token_label(token, index, limit=limit) for index, token in enumerate(tokens)]


def thinned(count: int, most: int) -> Sequence[int]:
    """Evenly spaced indices out of `count`, from 0 on and at most `most`, at a round step."""
    if count <= most:
        return range(count)
    step = next(s for s in _round_steps() if -(-count // s) <= most)
    return range(0, count, step)


def _round_steps() -> Iterable[int]:
    scale = 1
    while True:
        yield from (2 * scale, 5 * scale, 10 * scale)
        scale *= 10
