"""What do all cases say together?  Top-1 and top-3, types, confusion, misses; with intervals."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmarks.faults.grid import FaultCase
from benchmarks.faults.rows import Row

BANDS = ((0.3, math.inf), (0.1, 0.3), (0.02, 0.1))
"""Bands of cost in nats per token; not finite counts as infinite."""


def wilson(hits: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927)."""
    if not total:
        return 0.0, 1.0
    share = hits / total
    middle = share + z * z / (2 * total)
    reach = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    scale = 1 + z * z / total
    return max(0.0, (middle - reach) / scale), min(1.0, (middle + reach) / scale)


def cost_of(row: Row) -> float:
    """Nats per token; infinite where the model is not finite."""
    value = float(row["cost"])
    return value if math.isfinite(value) else math.inf


def is_place(case: FaultCase, finding: Sequence[Any]) -> bool:
    """True if a finding names the layer, and the write or the whole layer."""
    _, layer, write = finding
    return layer in case.layers and (case.write is None or write in (None, case.write))


def rank_of(case: FaultCase, row: Row) -> int | None:
    """Which finding is the first that names the place, from 0."""
    for index, finding in enumerate(row.get("found", [])):
        if is_place(case, finding):
            return index
    return None


def is_typed(case: FaultCase, row: Row) -> bool:
    """True if any finding at the right place has the right code."""
    return any(is_place(case, f) and f[0] in case.codes for f in row.get("found", []))


def summary(pairs: Sequence[tuple[FaultCase, Row]]) -> list[str]:
    """Lines of Markdown about functional faults."""
    functional = [(case, row) for case, row in pairs if row["functional"]]
    lines = [
        f"{len(functional)} functional faults of {len(pairs)} (the others cost less than 0.02 nats "
        "per token, or their interval holds 0).",
        "",
        "| cost, nats per token | faults | top-1 | 95 % | top-3 | type right |",
        "|---|---|---|---|---|---|",
    ]
    for low, high in BANDS:
        band = [(c, r) for c, r in functional if low <= cost_of(r) < high or cost_of(r) == high]
        label = f"{low:g} and more" if high == math.inf else f"{low:g} to {high:g}"
        lines.append(_band(label, band))
    lines.append(_band("all", functional))
    return lines


def _band(label: str, band: Sequence[tuple[FaultCase, Row]]) -> str:
    total = len(band)
    first = sum(rank_of(c, r) == 0 for c, r in band)
    third = sum((rank := rank_of(c, r)) is not None and rank < 3 for c, r in band)
    typed = sum(is_typed(c, r) for c, r in band)
    low, high = wilson(first, total)
    return (
        f"| {label} | {total} | {first} ({_share(first, total)}) | {low:.0%} to {high:.0%} | "
        f"{third} ({_share(third, total)}) | {typed} ({_share(typed, total)}) |"
    )


def _share(hits: int, total: int) -> str:
    return f"{hits / total:.1%}" if total else "-"


def by_reference(pairs: Sequence[tuple[FaultCase, Row]]) -> list[str]:
    """Lines of Markdown: is the place found if the undamaged model is at hand?"""
    compared = [(case, row) for case, row in pairs if "changed" in row]
    finite = [(c, r) for c, r in compared if c.fault != "nan"]
    costly = [(c, r) for c, r in compared if r["functional"]]
    lines = [
        "| with the undamaged model as reference | faults | right | 95 % |",
        "|---|---|---|---|",
        _right("changed weights, all that stay finite", [_by_weights(c, r) for c, r in finite]),
        _right("first write that is off, functional faults", [_by_write(c, r) for c, r in costly]),
        _right("first write that is off, all faults", [_by_write(c, r) for c, r in compared]),
    ]
    lost = [case.name for case, row in compared if not _by_write(case, row)]
    return [*lines, "", f"Not seen in activations: {', '.join(lost) or 'none'}."]


def _right(label: str, hits: Sequence[bool]) -> str:
    low, high = wilson(sum(hits), len(hits))
    share = _share(sum(hits), len(hits))
    return f"| {label} | {len(hits)} | {sum(hits)} ({share}) | {low:.1%} to {high:.1%} |"


def _by_weights(case: FaultCase, row: Row) -> bool:
    """True if the damaged place is named, and no other."""
    named = [is_place(case, ("", *place)) for place in row["changed"]]
    return bool(named) and all(named)


def _by_write(case: FaultCase, row: Row) -> bool:
    return row["diverges"] is not None and is_place(case, ("", *row["diverges"]))


def calibration(pairs: Sequence[tuple[FaultCase, Row]]) -> list[str]:
    """Of the places that are named on functional faults, how many are the damaged one?"""
    lines = ["| a finding that is | places named | the damaged one | 95 % |", "|---|---|---|---|"]
    for label, key in (("confirmed", "found"), ("suspected", "suspected")):
        hits = [
            is_place(case, ("", *place))
            for case, row in pairs
            if row["functional"]
            for place in dict.fromkeys((layer, write) for _, layer, write in row[key])
        ]
        lines.append(_right(label, hits))
    return lines


def misses(pairs: Sequence[tuple[FaultCase, Row]]) -> list[str]:
    """Every functional fault that is not named first, and what was said in its place."""
    lines: list[str] = []
    for case, row in sorted(pairs, key=lambda pair: -cost_of(pair[1])):
        if not row["functional"] or rank_of(case, row) == 0:
            continue
        found = ", ".join(_place(f) for f in row["found"]) or "nothing confirmed"
        suspected = ", ".join(_place(f) for f in row["suspected"])
        also = f"; suspected {suspected}" if suspected else ""
        lines.append(f"| {case.name} | {cost_of(row):.3g} | {found}{also} | {reason(case, row)} |")
    head = ["| fault | cost | what was said | why |", "|---|---|---|---|"]
    return head + lines if lines else ["None."]


def reason(case: FaultCase, row: Row) -> str:
    """Why the first finding is not the culprit, as far as the row tells."""
    if any(is_place(case, finding) for finding in row["found"]):
        return "found, but another came first"
    if any(is_place(case, finding) for finding in row["suspected"]):
        return "suspected; the interval or the number of tests left it open"
    if row["found"]:
        return "a victim was named: its repair helps, and the culprit's is not known"
    return "no statistic stands out, and taking the write away does not help"


def confusion(pairs: Sequence[tuple[FaultCase, Row]]) -> list[str]:
    """Kind of fault against the code at the right place (or what was found elsewhere)."""
    counts: dict[str, Counter[str]] = {}
    for case, row in pairs:
        if row["functional"]:
            counts.setdefault(case.fault, Counter())[_said(case, row)] += 1
    columns = sorted({code for counter in counts.values() for code in counter})
    lines = [f"| fault | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for fault, counter in sorted(counts.items()):
        lines.append(f"| {fault} | {' | '.join(str(counter[c] or '') for c in columns)} |")
    return lines


def _said(case: FaultCase, row: Row) -> str:
    here = [f[0] for f in row["found"] if is_place(case, f)]
    right = [code for code in here if code in case.codes]
    return next(iter(right or here), "elsewhere" if row["found"] else "nothing")


def _place(finding: Sequence[Any]) -> str:
    code, layer, write = finding
    return f"{code} L{layer} {write or ''}".strip()
