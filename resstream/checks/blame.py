"""What do facts explain?  While one stands, harm elsewhere may only be a victim's.

A dead write, a copied layer or a coarse matrix can't be repaired without a reference, so nobody can
be seen as it would be without that fault.  Harm and misplacement are read off the loss alone; next
to a fact they are suspicions, until the fact is mended and the model checked again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from resstream.checks.report import Finding

BEYOND_REPAIR = ("RS102", "RS104", "RS402")
"""Found by experiments, and facts all the same: nothing brings back what was learnt there."""
_EXPLAINED = ("RS203", "RS402", "RS404")
_QUIET = ("RS101", "RS102")
_BY_LOSS_ALONE = ("RS203", "RS204", "RS405", "RS407")


def weigh(findings: Sequence[Finding], facts: Sequence[Finding]) -> Iterator[Finding]:
    """Findings in the light of facts: the same, doubted, or left out as said already.

    Args:
        findings: What experiments found.
        facts: What needs no repair (weights, writes that are exactly nothing) or can have none
            (`BEYOND_REPAIR`).
    """
    sure = [
        fact
        for fact in facts
        if fact.status == "confirmed" and fact.severity != "info" and fact.layer is not None
    ]
    for finding in findings:
        said = any(
            (fact.layer, fact.write) == (finding.layer, finding.write)
            for fact in sure
            if fact is not finding
        )
        if said and finding.code in _EXPLAINED:
            continue
        suspects = _explaining(finding, sure) if finding.status == "confirmed" else []
        yield _doubted(finding, suspects[0]) if suspects else finding


def _explaining(finding: Finding, facts: Sequence[Finding]) -> list[Finding]:
    """The facts that the finding may be a consequence of."""
    if finding.code in _BY_LOSS_ALONE:
        return list(facts)
    if finding.code == "RS402":  # weak layers beside a fault may be drawn anew for nothing
        return [fact for fact in facts if fact.code not in BEYOND_REPAIR]
    return _drowning(finding, facts)


def _drowning(finding: Finding, facts: Sequence[Finding]) -> list[Finding]:
    """Weights out of all proportion, where a norm behind them may leave nothing of the rest."""
    if finding.code not in _QUIET or finding.layer is None:
        return []
    return [f for f in facts if f.code == "RS404" and (f.layer or 0) < finding.layer]


def _doubted(finding: Finding, fact: Finding) -> Finding:
    place = f"layer {fact.layer}" + (f" {fact.write}" if fact.write else "")
    statement = (
        f"{finding.statement}; a victim of {place} ({fact.code}) would look the same, so mend that "
        "first and check again"
    )
    return replace(finding, status="suspect", statement=statement)
