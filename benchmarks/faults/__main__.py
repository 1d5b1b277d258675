"""Run the fault benchmark and print its table.

    python -m benchmarks.faults --results DIR --data DIR --smollm2 DIR [--half report]
    python -m benchmarks.faults --results DIR --standing [--smollm2 DIR --text FILE]

Every fault is screened first (what does it cost?); `check` runs on those that cost something, and
each is compared with the undamaged model.  Whatever the folder of results holds is not run again.
Exits with 1 if a control has a confirmed finding, or a standing case went wrong.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from time import monotonic
from typing import TypeVar

from benchmarks.faults import standing
from benchmarks.faults.controls import controls
from benchmarks.faults.controls import examine as examine_control
from benchmarks.faults.grid import cases
from benchmarks.faults.models import Sources
from benchmarks.faults.rows import Row, read_rows
from benchmarks.faults.running import contrast, examine, screen
from benchmarks.faults.scoring import by_reference, summary
from benchmarks.faults.table import write_fresh, write_table

Item = TypeVar("Item")


def main() -> int:
    """Run what is missing and print the tables."""
    options = _parse()
    options.results.mkdir(parents=True, exist_ok=True)
    if options.standing:
        return standing.run(options.results / "standing.jsonl", options.smollm2, options.text)
    stop = monotonic() + 60 * options.minutes
    sources = Sources(options.results, options.data, options.smollm2)
    chosen = sorted(
        (case for case in cases() if options.half in (None, case.half) and sources.has(case.model)),
        key=lambda case: case.order,
    )

    def fill(
        name: str, items: Iterable[Item], run: Callable[[Item, Sources], Row]
    ) -> dict[str, Row]:
        return _fill(options.results / f"{name}.jsonl", items, lambda i: run(i, sources), stop)

    screened = fill("screens", chosen, screen)
    pairs = [
        (case, row)
        for case in chosen
        if (row := screened.get(case.name)) is not None and "refused" not in row
    ]
    checked = fill("checks", [case for case, row in pairs if row["functional"]], examine)
    compared = fill("references", [case for case, _ in pairs], contrast)
    healthy = [one for one in controls() if ":" in one.model or sources.has(one.model)]
    clean = {} if options.half in ("tune", "fresh") else fill("controls", healthy, examine_control)
    whole = [
        (case, row | compared.get(case.name, {}) | checked.get(case.name, {}))
        for case, row in pairs
        if not row["functional"] or case.name in checked
    ]
    print("\n".join([*summary(whole), "", *by_reference(whole)]))
    alarms = [row for row in clean.values() if any(f[3] == "confirmed" for f in row["found"])]
    print(f"{len(alarms)} of {len(clean)} controls with a confirmed finding")
    if options.half == "fresh":
        write_fresh(options.results, whole)
    if options.table is not None:
        write_table(options.table, whole, list(clean.values()), options.results)
    return 1 if alarms else 0


def _fill(
    file: Path, items: Iterable[Item], run: Callable[[Item], Row], stop: float
) -> dict[str, Row]:
    """Run the items that the file lacks, a line each; not those for which no time is left."""
    done = read_rows(file)
    for item in items:
        name: str = item.name  # type: ignore[attr-defined]
        if name in done or monotonic() > stop:
            continue
        row = run(item)
        with file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(row) + "\n")
        done[name] = row
        print(name, row.get("found", row.get("cost")), row.get("seconds", ""), flush=True)
    return done


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="fault benchmark of resstream check")
    parser.add_argument("--results", type=Path, required=True, help="folder; resumed if it exists")
    parser.add_argument("--data", type=Path, help="folder with stories260K and texts")
    parser.add_argument("--half", choices=("tune", "report", "fresh"), help="only these")
    parser.add_argument("--table", type=Path, help="write the published table there")
    parser.add_argument("--minutes", type=float, default=120.0, help="start nothing after this")
    parser.add_argument("--standing", action="store_true", help="the standing cases instead")
    parser.add_argument("--smollm2", type=Path, help="directory of the converted checkpoint")
    parser.add_argument("--text", type=Path, help="text for SmolLM2 (16 x 256 tokens are read)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
