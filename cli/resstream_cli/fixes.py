"""How are the fixes shown that a check has tried?"""

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from resstream_cli.tables import printable, table

if TYPE_CHECKING:
    from resstream import CheckReport
    from resstream.checks.report import RemedyTrial

_SHOWN = 3
"""Fixes of one finding; the files have all."""
_NAMED = 2
"""Weights that are named one by one; more are counted."""


def tried_fixes(report: "CheckReport") -> Iterator[RenderableType]:
    """The most promising fixes of each finding, and on which tokens they were judged."""
    for _, group in groupby(report.remedies, key=lambda item: (item.code, item.layer, item.write)):
        trials = list(group)
        yield Text(printable(_heading(trials)))
        yield _table(trials[:_SHOWN])
        if len(trials) > _SHOWN:
            yield Text(f"{len(trials) - _SHOWN} more were tried: --out, or --json.")
    if report.remedies:
        yield Text(_judged(report))


def _heading(trials: "list[RemedyTrial]") -> str:
    first = trials[0]
    where = f"L{first.layer} {first.write or ''}".strip() if first.layer >= 0 else "the model"
    names = dict.fromkeys(name for item in trials[:_SHOWN] for name in item.parameters)
    what = ", ".join(names) if len(names) <= _NAMED else f"{len(names)} of its weights"
    return (
        f"Fixes of {first.code}, {where}, tried on {what}; without them the loss is "
        f"{first.loss_before:.4g} on these tokens:"
    )


def _table(trials: "list[RemedyTrial]") -> RenderableType:
    headings = ("best", "fix", "loss with it", "change, 95 % from", "to")
    rows = [
        (
            "x" if item.best else "",
            item.short or item.remedy,
            f"{item.loss_after:.4g}",
            f"{item.ci[0]:+.3g}",
            f"{item.ci[1]:+.3g}",
        )
        for item in trials
    ]
    return table(headings, rows)


def _judged(report: "CheckReport") -> str:
    """How the best fix is chosen, and why two losses of the unchanged model are shown."""
    first = report.remedies[0]
    if not first.held_out:
        return (
            f"best: the lowest loss on these {first.n_tokens} tokens; the text is too short to "
            "judge a fix on others."
        )
    return (
        "best and the order: by the loss on one half of the sequences. The losses shown are of the "
        f"other half ({first.n_tokens} held-out tokens), where a row below may be lower; "
        f"{report.base_loss:.4g} further up is the loss of the whole text."
    )
