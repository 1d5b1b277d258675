"""How does the table of the mission look?"""

import re
from collections.abc import Mapping
from pathlib import Path

from benchmarks.mission.foundations import FOUNDATIONS
from benchmarks.mission.row import Row
from benchmarks.mission.scaling import SCALING
from benchmarks.mission.variants import VARIANTS
from resstream.train.experiments.registry import experiments
from resstream.train.experiments.report import ExperimentReport

DOCUMENT = Path(__file__).parents[2] / "docs" / "mission.md"
ROWS: tuple[Row, ...] = (*FOUNDATIONS, *SCALING, *VARIANTS)
_HEAD = """\
# Every claim and system

Made by `python -m benchmarks.mission RESULTS`, where RESULTS is the directory that
`resstream experiment --all --quick --out RESULTS` wrote; not to be edited by hand. Modules stand
below `resstream`, tests below `tests`. Verdicts are on the claim as it goes around, not on the
formula here: *no* means that what was measured contradicts it (`resstream experiment NAME` says
how), *open* that models of this size can't decide it.

| row | what | formula | made by | tests | experiments and verdicts |
|---|---|---|---|---|---|
"""
_WORDS = {"holds": "yes", "does not hold here": "no", "not testable at this size": "open"}
_VERDICT = re.compile(r"`([a-z0-9-]+)` \*\*(yes|no|open)\*\*")


def verdicts_of(report: ExperimentReport) -> dict[str, str]:
    """Name of an experiment -> its verdict in a word."""
    return {record.name: _WORDS[record.verdict] for record in report.experiments}


def read_verdicts(document: str) -> dict[str, str]:
    """The verdicts of a table as `render` wrote it."""
    return dict(_VERDICT.findall(document))


def tried_by(row: Row) -> tuple[str, ...]:
    """Names of the experiments that belong to a row."""
    return tuple(item.name for item in experiments() if row.number in item.rows)


def render(verdicts: Mapping[str, str]) -> str:
    """The whole document."""
    return _HEAD + "".join(_line(row, verdicts) for row in ROWS)


def _line(row: Row, verdicts: Mapping[str, str]) -> str:
    tried = [f"`{name}` **{verdicts[name]}**" for name in tried_by(row) if name in verdicts]
    cells = (
        str(row.number),
        row.title,
        row.formula.replace("|", "\\|"),
        _listed(row.made_by) or "-",
        _listed(row.tests),
        "<br>".join([*tried, *([row.why] if row.why else [])]) or "not run",
    )
    return f"| {' | '.join(cells)} |\n"


def _listed(names: tuple[str, ...]) -> str:
    return "<br>".join(f"`{name}`" for name in names)
