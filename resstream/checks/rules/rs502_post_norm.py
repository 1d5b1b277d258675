"""RS502: norms in the stream (Post-LN), which need a warm-up in training."""

from resstream.checks.rule import Rule
from resstream.stream.spec import StreamSpec

RULE = Rule(
    code="RS502",
    name="norm in the stream",
    stage="config",
    severity="info",
    what="The stream passes a norm after every write (Post-LN).",
    why="Gradients near the output are large at the start: without a warm-up of the learning rate "
    "such models diverge or end up much worse.",
    detection="Read from the discovered structure: a norm behind each addition, and no factor on "
    "the skip path (DeepNorm has one and needs no warm-up). A remark on training, not on this "
    "checkpoint.",
    traps="BERT and its kin are Post-LN and fine, since they were trained with a warm-up. This "
    "never fails a run by default.",
    fix="train with a warm-up, or move the norm before the sublayer (Pre-LN), or use DeepNorm",
    source="Xiong et al. (2020), On Layer Normalization in the Transformer Architecture.",
    example="resstream inspect MODEL",
)


def look(spec: StreamSpec) -> str | None:
    """What is to be known, in a sentence; None for other placements."""
    post = [block for block in spec.blocks if block.stream_norms]
    if not post or any(write.skip_scale != 1.0 for write in spec.writes):
        return None
    return (
        f"{len(post)} of {spec.n_layers} blocks norm the stream after each write (Post-LN): "
        "training them needs a warm-up"
    )
