"""RS401: a matrix or gain that is all zeros, unlike its peers."""

from resstream.checks.proof import plain
from resstream.checks.rule import Rule
from resstream.checks.weight_facts import WeightFact
from resstream.checks.weights import WeightTable

RULE = Rule(
    code="RS401",
    name="zero matrix",
    stage="weights",
    severity="error",
    what="A matrix or a gain is all zeros, while the same one of other layers is not.",
    why="A zero query matrix makes attention even, a zero output matrix or gain silences the "
    "write; a tensor lost in a conversion looks like this.",
    detection="Every value is exactly zero, and at least one peer (the same tensor of another "
    "layer) is not. A fact; it needs no text.",
    traps="Zero-initialised models have zeros in every layer and biases are often zero: only "
    "matrices and gains count, and only where most peers are not zero.",
    fix="restore the tensor from an earlier checkpoint, or convert the checkpoint again",
    source="Goyal et al. (2017) for zero-initialised gains, the trap.",
    example="resstream inject demo --fault uniform_attention --layer 3 --write attn --out broken\n"
    "resstream check broken --static",
)


def scan(table: WeightTable) -> list[WeightFact]:
    """Zero tensors whose peers are mostly not zero."""
    found: list[WeightFact] = []
    for own in table.in_blocks:
        if not own.is_zero or own.role.endswith("bias"):
            continue
        peers = table.peers(own)
        alive = sum(not peer.is_zero for peer in peers)
        if alive * 2 <= len(peers):
            continue
        found.append(
            WeightFact(
                reading=own,
                statement=f"{own.name} is all zeros, and in {alive} other layers it is not",
                evidence=(plain("largest magnitude", own.peak, 0.0),),
            )
        )
    return found
