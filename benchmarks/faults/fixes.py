"""How much of the lost cross-entropy does the exported fix bring back?

    python -m benchmarks.faults.fixes --results DIR --data DIR

Twenty damaged models: each is checked with the undamaged one as reference, and, where a fix without
one can be expected (size, gain, sign, channel), without.  What `check` would export is written,
loaded again, and read on text that neither the check nor its trials saw.
"""

import argparse
import math
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import resstream as rs
from benchmarks.faults.grid import FaultCase
from benchmarks.faults.models import Sources, corpus_of
from benchmarks.faults.running import damaged, untouched
from resstream.analysis.losses import mean_loss
from resstream.checks.checking import check_and_fix
from resstream.checks.remedies import export_fix
from resstream.checks.report import Finding, RemedyTrial
from resstream.stream.texts import Corpus

WITH_REFERENCE, WITHOUT = 0.9, 0.5
"""Shares of the loss that have to come back."""
_WITHOUT_REFERENCE = ("scale", "gain_scale", "sign_flip", "channel_spike")
_SAME = 0.005
"""Nats within which two fixes are as good as each other."""
_CASES = (
    ("demo", "scale", 0.1, 5, "attn"),
    ("demo", "scale", 16, 4, "mlp"),
    ("demo", "gain_scale", 16, 5, "attn"),
    ("demo", "sign_flip", None, 5, "mlp"),
    ("demo", "channel_spike", 50, 4, "mlp"),
    ("demo", "zero", None, 4, "attn"),
    ("demo", "reinit", None, 5, "mlp"),
    ("demo", "swap", 1, 3, None),
    ("stories260K", "scale", 4, 2, "mlp"),
    ("stories260K", "gain_scale", 0.1, 2, "mlp"),
    ("stories260K", "sign_flip", None, 3, "attn"),
    ("stories260K", "channel_spike", 500, 2, "attn"),
    ("stories260K", "quantize", 2, 3, "mlp"),
    ("stories260K", "nan", None, 2, "attn"),
    ("pre_ln", "scale", 16, 3, "attn"),
    ("pre_ln", "sign_flip", None, 5, "mlp"),
    ("pre_ln", "bit_flip", 30, 3, "mlp"),
    ("layer_scale", "scale", 16, 5, "mlp"),
    ("layer_scale", "stale", None, 3, None),
    ("rezero", "channel_spike", 50, 3, "mlp"),
)


def main() -> None:
    """Run all and print a table."""
    parser = argparse.ArgumentParser(description="exported fixes of the fault benchmark")
    parser.add_argument("--results", type=Path, required=True, help="as for benchmarks.faults")
    parser.add_argument("--data", type=Path, required=True)
    options = parser.parse_args()
    sources = Sources(options.results, options.data)
    shown = [_show(case, sources) for case in _cases()]
    alone = [row["without"] for row in shown if row["without"] is not None]
    lines = [
        "| fault | healthy | damaged | fixed, reference | back | fixed alone | back | best first |",
        "|---|---|---|---|---|---|---|---|",
        *(_line(row) for row in shown),
        "",
        f"With a reference at least {WITH_REFERENCE:.0%} come back in "
        f"{sum(row['with_reference'] >= WITH_REFERENCE for row in shown)} of {len(shown)} models, "
        f"without one at least {WITHOUT:.0%} in {sum(share >= WITHOUT for share in alone)} of "
        f"{len(alone)}; the best simulated fix is named first in "
        f"{sum(row['best_first'] for row in shown)} of {len(shown)}.",
    ]
    print("\n".join(lines))
    (options.results / "fixes.md").write_text("\n".join(lines) + "\n", "utf-8")


def _line(row: dict[str, Any]) -> str:
    alone = "- | -"
    if row["without"] is not None:
        alone = f"{row['fixed_alone']:.3f} | {row['without']:.0%}"
    return (
        f"| {row['name']} | {row['healthy']:.3f} | {row['damaged']:.3f} | {row['fixed']:.3f} | "
        f"{row['with_reference']:.0%} | {alone} | {'yes' if row['best_first'] else 'no'} |"
    )


def _cases() -> Iterator[FaultCase]:
    for model, fault, severity, layer, write in _CASES:
        yield FaultCase(model=model, fault=fault, severity=severity, layer=layer, write=write)


def _show(case: FaultCase, sources: Sources) -> dict[str, Any]:
    good, unseen = untouched(case.model, sources), _windows(case, sources, first=1)
    healthy = mean_loss(good, unseen)
    with damaged(case, sources) as model:
        broken = mean_loss(model, unseen)
        fixed, first = _fixed_loss(model, case, sources, reference=good)
        alone = None
        if case.fault in _WITHOUT_REFERENCE:
            alone, first_alone = _fixed_loss(model, case, sources, reference=None)
            first = first and first_alone
    print(case.name, flush=True)
    return {
        "name": case.name,
        "healthy": healthy,
        "damaged": broken,
        "fixed": fixed,
        "with_reference": _back(healthy, broken, fixed),
        "fixed_alone": alone,
        "without": None if alone is None else _back(healthy, broken, alone),
        "best_first": first,
    }


def _windows(case: FaultCase, sources: Sources, *, first: int) -> Corpus:
    """Every second window of 4,096 tokens: one half is checked, the other measured."""
    return corpus_of(case.model, sources, 32).every(2, first=first)


def _back(healthy: float, broken: float, fixed: float) -> float:
    """Share of the loss that came back; all of what is finite if the damaged loss is not."""
    if math.isnan(broken):
        return 1.0 if abs(fixed - healthy) < 0.01 else 0.0
    return (broken - fixed) / (broken - healthy)


def _fixed_loss(
    model: "rs.StreamModel", case: FaultCase, sources: Sources, *, reference: Any
) -> tuple[float, bool]:
    """Loss of the checkpoint with the exported fix, and whether the best fix was named first."""
    unseen = _windows(case, sources, first=1)
    fresh = rs.load(model.module, tokenizer=model.tokenizer)
    report, weights = check_and_fix(fresh, _windows(case, sources, first=0), reference=reference)
    ordered = all(_named_best(finding, report.remedies) for finding in report.findings)
    if not weights:
        return mean_loss(model, unseen), ordered
    with tempfile.TemporaryDirectory() as place:
        export_fix(fresh, weights, Path(place) / "fixed")
        return mean_loss(rs.load(Path(place) / "fixed"), unseen), ordered


def _named_best(finding: Finding, trials: Sequence[RemedyTrial]) -> bool:
    """True if the fix that a finding names first is the best of those tried for it."""
    place = (finding.code, finding.layer, finding.write)
    own = [trial for trial in trials if (trial.code, trial.layer, trial.write) == place]
    if not own:
        return True
    best = min(trial.loss_after for trial in own)
    named = next((trial for trial in own if trial.best), None)
    if named is None:  # right if no fix helps
        return all(trial.loss_after > trial.loss_before - _SAME for trial in own)
    return finding.remedy.startswith(named.remedy) and named.loss_after <= best + _SAME


if __name__ == "__main__":
    main()
