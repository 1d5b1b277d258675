"""How values look in a table of the terminal."""

import math
from collections.abc import Iterable, Sequence

from rich import box
from rich.table import Table
from rich.text import Text


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A plain table: numbers to the right, everything shown, nothing read as markup."""
    filled = [[cell(value) for value in row] for row in rows]
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, heading in enumerate(headings):
        is_number = all(_is_number(row[index]) for row in filled)
        made.add_column(heading, justify="right" if is_number else "left", overflow="fold")
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


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text == "-"
    return True
