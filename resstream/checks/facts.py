"""Which weights are wrong by themselves?  All rules of weights, as findings."""

from collections.abc import Callable, Collection

from resstream.checks.registry import RULES
from resstream.checks.report import Finding
from resstream.checks.rules import (
    rs107_rank,
    rs401_zero_matrix,
    rs402_untrained,
    rs403_coarse,
    rs404_outlier,
    rs406_duplicate,
)
from resstream.checks.rules.rs001_not_finite import in_weights
from resstream.checks.weight_facts import WeightFact
from resstream.checks.weight_sizes import odd_sizes
from resstream.checks.weights import WeightTable

WITHOUT_RUN: dict[str, Callable[[WeightTable], list[WeightFact]]] = {
    "RS107": rs107_rank.scan,
    "RS401": rs401_zero_matrix.scan,
    "RS403": rs403_coarse.scan,
    "RS406": rs406_duplicate.scan,
}
"""Facts that need no run, with or without one."""
STATIC_CODES = frozenset(WITHOUT_RUN) | {"RS001", "RS102", "RS201", "RS402", "RS404"}
"""Rules that say something where the model is not run."""


def weight_findings(
    table: WeightTable, outputs: frozenset[str], active: Collection[str]
) -> list[Finding]:
    """Facts about the weights, which an experiment would add nothing to.

    Args:
        table: Readings of all tensors.
        outputs: Names of the matrices that project into the stream.
        active: Codes that are used.
    """
    found = _scan(table, outputs, active)
    return [f for f in found if f.code in WITHOUT_RUN or f.status == "confirmed"]


def static_findings(
    table: WeightTable, outputs: frozenset[str], active: Collection[str]
) -> list[Finding]:
    """The same, and what is only a suspicion where the model is not run."""
    findings = in_weights(table) if "RS001" in active else []
    findings += _scan(table, outputs, active)
    for code, large in (("RS102", False), ("RS201", True)):
        if code in active:
            findings += [as_finding(code, fact) for fact in odd_sizes(table, large=large)]
    return findings


def _scan(table: WeightTable, outputs: frozenset[str], active: Collection[str]) -> list[Finding]:
    facts = {code: scan(table) for code, scan in WITHOUT_RUN.items() if code in active}
    if "RS402" in active:
        facts["RS402"] = rs402_untrained.scan(table, outputs)
    if "RS404" in active:
        facts["RS404"] = rs404_outlier.scan(table)
    return [as_finding(code, fact) for code, found in facts.items() for fact in found]


def as_finding(code: str, fact: WeightFact) -> Finding:
    """A fact as a finding of its rule."""
    own, rule = fact.reading, RULES[code]
    write = None if code == "RS406" else own.write
    return Finding(
        code=code,
        status=fact.status,
        severity=fact.severity or rule.severity,
        layer=own.layer,
        write=write,
        site=None if write is None else f"blocks.{own.layer}.hook_{write}_out",
        statement=fact.statement,
        evidence=fact.evidence,
        remedy=rule.fix,
    )
