"""The page that is published: what was run, what was found, what was missed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.faults.grid import FaultCase
from benchmarks.faults.scoring import by_reference, calibration, confusion, misses, summary, wilson

Row = dict[str, Any]

COMMAND = (
    "python -m benchmarks.faults --results results --data DATA --smollm2 SMOLLM2 --half report "
    "--table docs/faults.md"
)


def write_table(
    path: Path, pairs: Sequence[tuple[FaultCase, Row]], controls: Sequence[Row]
) -> None:
    """Write the page for the faults and controls that were run."""
    parts = [
        *_head(pairs),
        *summary(pairs),
        "",
        *by_reference(pairs),
        "",
        *calibration(pairs),
        "",
        "## By model",
        *[line for model in _models(pairs) for line in _of_model(model, pairs)],
        "",
        "## What is said about which fault",
        "",
        "Kind of fault against the rule that named the right place; `elsewhere`: only other places "
        "were named.",
        "",
        *confusion(pairs),
        "",
        "## Every miss",
        "",
        *misses(pairs),
        "",
        "## Healthy models",
        "",
        *_controls(controls),
    ]
    path.write_text("\n".join(parts) + "\n", encoding="utf-8")


def _head(pairs: Sequence[tuple[FaultCase, Row]]) -> list[str]:
    seconds = [row["seconds"] for _, row in pairs if "seconds" in row]
    mean = sum(seconds) / len(seconds) if seconds else 0.0
    halves = sorted({case.half for case, _ in pairs})
    return [
        "# How often is `resstream check` right?",
        "",
        "Faults are injected into trained models, one at a time, and `check` runs without a "
        "reference. A finding is right if it names the layer and the write (or the whole layer); "
        "top-1 means the first confirmed finding does. The faults were split by model, kind and "
        "layer before thresholds were set ([split.csv](../benchmarks/faults/split.csv)); shown is "
        f"the half `{', '.join(halves)}`.",
        "",
        f"    {COMMAND}",
        "",
        f"A check took {mean:.0f} s on average on one core of a machine that was busy with other "
        "work.",
        "",
    ]


def _models(pairs: Sequence[tuple[FaultCase, Row]]) -> list[str]:
    return sorted({case.model for case, _ in pairs})


def _of_model(model: str, pairs: Sequence[tuple[FaultCase, Row]]) -> list[str]:
    own = [pair for pair in pairs if pair[0].model == model]
    return ["", f"### {model}", "", *summary(own)]


def _controls(controls: Sequence[Row]) -> list[str]:
    if not controls:
        return ["None were run."]
    confirmed = [r for r in controls if any(f[3] == "confirmed" for f in r["found"])]
    suspects = sum(sum(f[3] != "confirmed" for f in row["found"]) for row in controls)
    writes = sum(row["writes"] for row in controls)
    low, high = wilson(len(confirmed), len(controls))
    lines = [
        f"{len(confirmed)} of {len(controls)} controls have a confirmed finding (95 % interval "
        f"{low:.1%} to {high:.1%}); {suspects} suspicions among {writes} writes.",
        "",
        "| control | tokens | verdict | findings |",
        "|---|---|---|---|",
    ]
    for row in controls:
        found = ", ".join(f"{f[0]} L{f[1]} {f[2]} ({f[3]})" for f in row["found"]) or "-"
        lines.append(f"| {row['name']} | {row['tokens']} | {row['verdict']} | {found} |")
    return lines
