"""RS406: two layers with the same weights."""

from resstream.checks.proof import plain
from resstream.checks.rule import Rule
from resstream.checks.weight_facts import WeightFact
from resstream.checks.weights import MatrixReading, WeightTable

RULE = Rule(
    code="RS406",
    name="duplicate layer",
    stage="weights",
    severity="warning",
    what="Matrices of two layers are equal to the last bit.",
    why="A layer was copied over another (a failed merge, a wrong index in a conversion): what the "
    "other had learnt is gone.",
    detection="SHA-256 of the values of each matrix; equal, not all zeros, in two layers and not "
    "in most. The later of the two is named, since weights do not say which was first. A fact.",
    traps="Models that share their layers by design (ALBERT) are equal everywhere, and share the "
    "parameter itself; depth-up-scaled models hold copies on purpose: accept them in a baseline. "
    "Gains and biases are often equal at initialisation and do not count.",
    fix="restore the layer from an earlier checkpoint; accept a copy that is wanted (--baseline)",
    source="Kim et al. (2024), SOLAR 10.7B (depth up-scaling), the trap.",
    example="resstream inject demo --fault duplicate --layer 3 --out broken\n"
    "resstream check broken --static",
)


def scan(table: WeightTable) -> list[WeightFact]:
    """One fact for each layer that repeats matrices of an earlier one."""
    twins: dict[tuple[int, int], list[MatrixReading]] = {}
    first: dict[tuple[str, str], MatrixReading] = {}
    for own in sorted(table.in_blocks, key=lambda reading: reading.layer or 0):
        if not own.is_matrix or own.is_zero:
            continue
        other = first.setdefault((own.role, own.digest), own)
        equal = sum(peer.digest == own.digest for peer in table.peers(own))
        if other is not own and equal * 2 <= len(table.peers(own)):
            twins.setdefault((other.layer or 0, own.layer or 0), []).append(own)
    return [_fact(pair, matrices) for pair, matrices in twins.items()]


def _fact(pair: tuple[int, int], matrices: list[MatrixReading]) -> WeightFact:
    names = ", ".join(own.role for own in matrices[:3]) + (" ..." if len(matrices) > 3 else "")
    return WeightFact(
        reading=matrices[0],
        statement=(
            f"layers {pair[0]} and {pair[1]} hold the same {len(matrices)} matrices ({names})"
        ),
        evidence=(plain("matrices equal to the last bit", len(matrices), 1.0),),
    )
