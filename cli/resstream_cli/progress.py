"""What the person at the keyboard sees while it works; on stderr, so that stdout stays data."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

Advance = Callable[[int, int], None]
"""Takes what is done and what there is to do."""

_LINES = 5
"""How often a log, which has no moving bar, hears of the progress."""


@contextmanager
def working(what: str) -> Iterator[Advance]:
    """Say what is being done and how far it is: a bar on a terminal, lines in a log.

    Whatever a library prints meanwhile goes to stderr too: stdout belongs to the result.
    """
    console = Console(stderr=True, highlight=False)
    began = monotonic()
    with redirect_stdout(sys.stderr):
        if console.is_terminal:
            with _bar(what, console) as advance:
                yield advance
        else:
            yield _lines(what, console)
    console.print(f"{what}: done in {monotonic() - began:.1f} s", style="dim", markup=False)


@contextmanager
def _bar(what: str, console: Console) -> Iterator[Advance]:
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _lines(what: str, console: Console) -> Advance:
    said = 0

    def advance(done: int, total: int) -> None:
        nonlocal said
        part = done * _LINES // total if total else 0
        if said < part < _LINES:
            said = part
            console.print(f"{what}: {done} of {total}", style="dim", markup=False)

    return advance
