"""How values look in a table of the terminal."""

import math
import re
from collections.abc import Iterable, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

_QUOTED = re.compile(r"""\S*(?:'[^']*'|"[^"]*")""")
"""A token in quotes, with what stands before it: `3:' Frank'`."""
_WIDEST_TOKEN = 10
"""Longer ones may be broken."""
_BETWEEN = 3
"""Width that a column takes beside its own: padding, and a divider."""


class _Fitting(Table):
    """A table that would rather break a piece than lose a column at the edge of the terminal."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The rows, with the least widths where there is place for all of them."""
        if sum((column.min_width or 1) + _BETWEEN for column in self.columns) > options.max_width:
            for column in self.columns:
                column.min_width = None
        return super().__rich_console__(console, options)


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A plain table: numbers to the right, everything shown, nothing read as markup.

    In a narrow terminal text is wrapped; a number, a word of a heading and a token in quotes
    stay whole where there is place for them.
    """
    filled = [[cell(value) for value in row] for row in rows]
    made = _Fitting(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, heading in enumerate(headings):
        values = [row[index] for row in filled]
        is_number = all(map(_is_number, values))
        made.add_column(
            Text(heading),
            justify="right" if is_number else "left",
            overflow="fold",
            min_width=_least_width(heading, values, is_number=is_number),
        )
    for row in filled:
        made.add_row(*map(Text, row))
    return made


def cell(value: object) -> str:
    """A value as text: four digits of a number, and a dash for nothing."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else str(value)
    return printable(str(value))


def printable(text: str) -> str:
    """`text` without control characters: names come from checkpoints, and may hold anything."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def signed(value: float) -> str:
    """A difference: always with its sign."""
    return f"{value:+.4f}" if math.isfinite(value) else str(value)


def _least_width(heading: str, values: Sequence[str], *, is_number: bool) -> int:
    """The longest piece of a column that must not be broken."""
    quoted = [piece for text in (heading, *values) for piece in _QUOTED.findall(text)]
    widths = [min(cell_len(piece), _WIDEST_TOKEN) for piece in quoted]
    widths += [cell_len(word) for word in _QUOTED.sub("", heading).split()]
    return max([1, *widths, *(map(cell_len, values) if is_number else ())])


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text == "-"
    return True
