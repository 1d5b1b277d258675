"""Write docs/mission.md: ``python -m benchmarks.mission [RESULTS]``.

RESULTS is what `resstream experiment --all --out RESULTS` wrote; without it the verdicts of the
table that is there are kept.
"""

import sys
from pathlib import Path

from benchmarks.mission.table import DOCUMENT, read_verdicts, render, verdicts_of
from resstream.reports.results import load_result
from resstream.stream.files import write_file
from resstream.train.experiments.report import ExperimentReport


def main(arguments: list[str]) -> None:
    """Render the table and put it in place."""
    if arguments:
        report = load_result(Path(arguments[0]))
        assert isinstance(report, ExperimentReport), "that is no result of `experiment`"
        verdicts = verdicts_of(report)
    else:
        verdicts = read_verdicts(DOCUMENT.read_text(encoding="utf-8"))
    with write_file(DOCUMENT) as part:
        part.write_text(render(verdicts), encoding="utf-8")
    print(f"{DOCUMENT}: {len(verdicts)} verdicts")


if __name__ == "__main__":
    main(sys.argv[1:])
