"""RS403: a matrix on a coarser grid than its peers."""

import math

import numpy as np

from resstream.checks.proof import plain
from resstream.checks.report import Severity
from resstream.checks.rule import Rule
from resstream.checks.weight_facts import WeightFact
from resstream.checks.weights import MatrixReading, WeightTable

MOST_LEVELS = 256
_COARSER = 2.5
_FEW_BITS = 4.0

RULE = Rule(
    code="RS403",
    name="coarse matrix",
    stage="weights",
    severity="warning",
    what="A matrix takes few different values, unlike the same matrix of other layers.",
    why="It was quantised differently from its peers: by mistake, or by a tool that failed half "
    "way.",
    detection=f"Median count of different values in a row at most {MOST_LEVELS} and at least "
    f"{_COARSER:g} times below the peers' median. Up to {_FEW_BITS:g} bits it is a warning, above "
    "it a remark: eight bits seldom cost anything. A fact about the weights; what it costs can "
    "only be told with a reference.",
    traps="A dequantised GGUF has a grid everywhere, and mixed schemes give some layers more bits: "
    "block-wise scales leave hundreds of values in a row there, and peers are compared. Short rows "
    "have few values by nature.",
    fix="quantise the layer as the others, or restore it from the unquantised checkpoint",
    source="Dettmers et al. (2022), LLM.int8().",
    example="resstream inject demo --fault quantize --severity 3 --layer 4 --write mlp "
    "--out broken\nresstream check broken --static",
)


def scan(table: WeightTable) -> list[WeightFact]:
    """Matrices with far fewer different values than their peers."""
    found: list[WeightFact] = []
    for own in table.in_blocks:
        peers = [peer.distinct for peer in table.peers(own) if not peer.is_zero]
        if not own.is_matrix or own.is_zero or own.n_bad or not peers or own.distinct > MOST_LEVELS:
            continue
        usual = float(np.median(peers))
        if own.distinct * _COARSER > usual:
            continue
        found.append(_fact(own, usual))
    return found


def _fact(own: MatrixReading, usual: float) -> WeightFact:
    bits = math.log2(max(1, own.distinct))
    severity: Severity = "warning" if bits <= _FEW_BITS else "info"
    return WeightFact(
        reading=own,
        statement=(
            f"{own.name} is on a grid of about {max(1, round(bits))} bits: {own.distinct} "
            f"different values in a row, {usual:.0f} in the same matrix of other layers"
        ),
        evidence=(
            plain("different values in a row (median)", own.distinct, usual / _COARSER),
            plain("the same in other layers (median)", usual),
        ),
        severity=severity,
    )
