"""RS107: a matrix that has collapsed to one direction."""

from collections.abc import Sequence

import numpy as np

from resstream.checks.proof import plain
from resstream.checks.rule import Rule
from resstream.checks.weight_facts import WeightFact
from resstream.checks.weights import WeightTable

RANK = 1.02
_PEERS = 2.0
_EXACT, _NEVER = 1.0001, 1.02

RULE = Rule(
    code="RS107",
    name="rank collapse",
    stage="weights",
    severity="error",
    what="A matrix has rank one, unlike the same matrix of other layers.",
    why="Whatever the layer reads, it can write one direction only.",
    detection=f"Stable rank |W|_F^2 / |W|_2^2 (by power iteration) below {RANK:g}, while the same "
    f"matrix of the other layers has at least {_PEERS:g} in the median, or below {_EXACT:g} while "
    f"none of them is below {_NEVER:g}. A fact about the weights; it needs no text.",
    traps="Trained query and key matrices may have a stable rank of 1.5. Bounds are therefore "
    "close to the exact value, and against peers.",
    fix="restore the matrix from an earlier checkpoint",
    source="Rudelson and Vershynin (2007) for the stable rank; Dong et al. (2021) for collapse.",
    example="resstream inject demo --fault rank_one --layer 3 --write mlp --out broken\n"
    "resstream check broken --static",
)


def scan(table: WeightTable) -> list[WeightFact]:
    """Matrices of rank one."""
    return [
        WeightFact(
            reading=own,
            statement=f"{own.name} has collapsed to rank one",
            evidence=(
                plain("stable rank", own.stable_rank, RANK),
                plain("stable rank of the same matrix in other layers (median)", np.median(usual)),
            ),
        )
        for own in table.in_blocks
        if own.is_matrix and not own.is_zero and not own.n_bad
        and min(own.shape) > 2 and own.stable_rank < RANK
        and _is_odd(own.stable_rank, usual := [p.stable_rank for p in table.peers(own)])
    ]  # fmt: skip


def _is_odd(rank: float, peers: Sequence[float]) -> bool:
    """Large models have a few strong directions: peers may be close to rank one, but not on it."""
    if not peers:
        return False
    return float(np.median(peers)) > _PEERS or (rank < _EXACT and min(peers) > _NEVER)
