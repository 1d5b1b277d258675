"""RS502: norms in the stream (Post-LN), which need a warm-up in training."""

from resstream.checks.rule import Rule
from resstream.stream.spec import StreamSpec

_WITHOUT = "training them needs a warm-up, and training.yaml has none (warmup_steps: 0)"

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
    "checkpoint. A run of `resstream train` says in its training.yaml whether there was a warm-up; "
    "with one, nothing is reported.",
    traps="BERT and its kin are Post-LN and fine, since they were trained with a warm-up. This "
    "never fails a run by default.",
    fix="train with a warm-up, or move the norm before the sublayer (Pre-LN), or use DeepNorm",
    source="Xiong et al. (2020), On Layer Normalization in the Transformer Architecture.",
    example="cat > post.yaml <<'END'\n"
    "model: {n_layers: 4, d_model: 32, n_heads: 2, n_ctx: 64, placement: post}\n"
    "tokenizer: {kind: bytes}\n"
    "training: {steps: 1}\n"
    "output: post\n"
    "END\n"
    "resstream train post.yaml\n"
    "resstream check post",
)


def look(spec: StreamSpec, warmup_steps: int | None) -> str | None:
    """What is to be known, in a sentence; None for other placements, and after a warm-up.

    Args:
        spec: The stream.
        warmup_steps: Of the training that made the checkpoint; None if it is not known.
    """
    post = [block for block in spec.blocks if block.stream_norms]
    if not post or any(write.skip_scale != 1.0 for write in spec.writes) or warmup_steps:
        return None
    known = "training them needs a warm-up" if warmup_steps is None else _WITHOUT
    return (
        f"{len(post)} of {spec.n_layers} blocks norm the stream after each write (Post-LN): {known}"
    )
