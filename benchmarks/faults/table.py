"""The page that is published: what was run, what was found, what was missed."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.faults.grid import FaultCase
from benchmarks.faults.rows import Row
from benchmarks.faults.scoring import by_reference, calibration, confusion, misses, summary, wilson

COMMAND = (
    "python -m benchmarks.faults --results results --data DATA --half report --table docs/faults.md"
)

_HISTORY = (
    "**How often this half was looked at.** Four times. After the third run its misses were looked "
    "at one by one, and rules were mended: heads are put in the one order that the weights speak "
    "for instead of in any that lowers the loss (RS405), a harmful write is tried smaller before "
    "it is called harmful (RS201), noise is taken off a swollen matrix (RS402), exact rank one is "
    "a fact (RS107), and a dead write explains harm elsewhere (RS102, RS104). The text was doubled "
    "to 4,096 tokens as well. So this half is no longer untouched. Layers that nobody had looked "
    "at are: they were damaged for the first time when all of that stood, and nothing was changed "
    "after. Before the mends the half had 143 of 147 right at 0.3 nats and more, 57 of 61 from 0.1 "
    "and 90 of 100 from 0.02 on."
)
_FRESH = (
    "Layers 4 and 6 of the trained models, in neither half.\n\n"
    "    python -m benchmarks.faults --results results --data DATA --half fresh"
)
_PEERS = (
    "A sample of the same faults (the small models) shown to two other tools; the first of their "
    "findings that the undamaged model does not have counts, and the layer alone has to be "
    "right.\n\n"
    "    pip install model-clinic torchmortem\n"
    "    python -m benchmarks.faults.peers --results results --data DATA"
)
_FIXES = (
    "Twenty damaged models; what `check --export-fix` writes is loaded again and read on text "
    "that the check has not seen (cross-entropy in nats per token, share of the loss that comes "
    "back).\n\n"
    "    python -m benchmarks.faults.fixes --results results --data DATA"
)
_LIMITS = """## What this does not show

* Not in the grid: faults of a whole model (RoPE base, mask, epsilon), casts to 16 and 8 bits,
  fine-tuning one layer at too high a rate, double or missing hooks.  The trained Fixup model has no
  single output matrix behind its multipliers, so that most faults can't be put there.
* The models trained here are read on the text that they know. On foreign text a small model's last
  attention may do harm in earnest (0.03 to 0.07 nats for `pre_ln` on three other texts), and
  `check` then says so: check a model on text like what it was made for.
* SmolLM2 is not in the tables: a check of it takes minutes of a core. All of its 54 faults of this
  half cost something; the 7 that were checked before the last mends (the first in an order by hash)
  were named rightly.
* Heads of grouped-query models share their values, so that their order can't be told by weights,
  and the loss alone is no proof: on foreign text many a wrong order lowers it."""


def write_table(
    path: Path,
    pairs: Sequence[tuple[FaultCase, Row]],
    controls: Sequence[Row],
    results: Path,
) -> None:
    """Write the page for the faults and controls that were run, and what else `results` holds."""
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
        *_section("Layers that nobody had looked at", _FRESH, results / "fresh.md"),
        *_section("Other tools", _PEERS, results / "peers.md"),
        *_section("Exported fixes", _FIXES, results / "fixes.md"),
        "",
        _LIMITS,
    ]
    path.write_text("\n".join(parts) + "\n", encoding="utf-8")


def write_fresh(results: Path, pairs: Sequence[tuple[FaultCase, Row]]) -> None:
    """Keep what the fresh layers gave for the page."""
    text = "\n".join([*summary(pairs), "", *misses(pairs)])
    (results / "fresh.md").write_text(text + "\n", encoding="utf-8")


def _section(title: str, text: str, table: Path) -> list[str]:
    if not table.exists():
        return []
    return ["", f"## {title}", "", text, "", table.read_text("utf-8").rstrip()]


def _head(pairs: Sequence[tuple[FaultCase, Row]]) -> list[str]:
    seconds = [row["seconds"] for _, row in pairs if "seconds" in row]
    mean = sum(seconds) / len(seconds) if seconds else 0.0
    halves = sorted({case.half for case, _ in pairs})
    return [
        "# How often is `resstream check` right?",
        "",
        "Faults are injected into trained models, one at a time, and `check` runs without a "
        "reference on 4,096 tokens. A finding is right if it names the layer and the write (or the "
        "whole layer); top-1 means the first confirmed finding does. The faults were split by "
        "model, kind and layer before thresholds were set "
        "([split.csv](../benchmarks/faults/split.csv)); shown is the half "
        f"`{', '.join(halves)}`.",
        "",
        f"    {COMMAND}",
        "",
        f"A check took {mean:.1f} s on average and all of them {sum(seconds) / 60:.0f} minutes of "
        "one core; screening, references and controls took some minutes more.",
        "",
        _HISTORY,
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
