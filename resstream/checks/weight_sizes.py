"""Which tensors are far larger or smaller than the same ones of near layers?  Weights alone."""

import math

from resstream.checks.proof import plain
from resstream.checks.weight_facts import WeightFact
from resstream.checks.weights import MatrixReading, WeightTable

TIMES = 3.0
_Z, _FLOOR = 6.0, 0.15


def odd_sizes(table: WeightTable, *, large: bool) -> list[WeightFact]:
    """Suspicions: a norm may be unusual in a healthy model, and only a run can tell.

    Args:
        table: Readings of all tensors.
        large: Those above their peers (RS201), or those below (RS102).
    """
    found: list[WeightFact] = []
    for own in table.in_blocks:
        usual, z = _beside_peers(table, own)
        if not (usual > 0 and own.norm > 0):
            continue
        ratio = own.norm / usual
        if (ratio > TIMES and z > _Z) if large else (ratio < 1 / TIMES and z < -_Z):
            found.append(_fact(own, ratio, z))
    return found


def _beside_peers(table: WeightTable, own: MatrixReading) -> tuple[float, float]:
    if own.role.endswith("bias") or len(table.peers(own)) < 3:
        return math.nan, 0.0
    return table.score(own, "norm", floor=_FLOOR)


def _fact(own: MatrixReading, ratio: float, z: float) -> WeightFact:
    return WeightFact(
        reading=own,
        statement=f"the norm of {own.name} is {ratio:.3g} times that of its peers; only a run can "
        "tell whether that does harm",
        evidence=(
            plain("norm over the median of its peers", ratio, TIMES if ratio > 1 else 1 / TIMES),
            plain("robust z-score of its log among them", z, math.copysign(_Z, z)),
        ),
        status="suspect",
    )
