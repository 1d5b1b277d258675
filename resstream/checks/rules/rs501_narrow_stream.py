"""RS501: the configuration stores the stream in a narrow type."""

from typing import Any

from resstream.checks.rule import Rule

RULE = Rule(
    code="RS501",
    name="narrow stream",
    stage="config",
    severity="info",
    what="The configuration keeps the residual stream in 16 bits.",
    why="A write that is small beside the stream is rounded away when it is added: in bfloat16 a "
    "tenth of it is lost where the stream is 60 times as large.",
    detection="`residual_in_fp32: false` in a Hugging Face configuration that has the switch "
    "(Mamba and its kin), or `stream_dtype: compute` in a native one whose weights are narrow. A "
    "remark: what it costs in this model is measured by `resstream profile --reading precision`.",
    traps="Most transformers run in bfloat16 throughout and lose little: KL 4e-4 nats in SmolLM2. "
    "This never fails a run by default.",
    fix="keep the stream in float32 (residual_in_fp32, stream_dtype: float32)",
    source="Micikevicius et al. (2018); Gu and Dao (2023), Mamba, for the switch.",
    example="cat > narrow.yaml <<'END'\n"
    "model: {n_layers: 4, d_model: 32, n_heads: 2, n_ctx: 64, stream_dtype: compute}\n"
    "tokenizer: {kind: bytes}\n"
    "training: {steps: 1}\n"
    "output: narrow\n"
    "END\n"
    "resstream train narrow.yaml\n"
    "resstream check narrow --dtype bfloat16",
)


def look(config: Any, dtype_bits: int) -> str | None:
    """What is wrong, in a sentence; None if nothing is."""
    if getattr(config, "residual_in_fp32", None) is False:
        return "the configuration says residual_in_fp32: false; small writes are rounded away"
    inner = getattr(config, "transformer", None)
    stream = inner.get("stream_dtype") if isinstance(inner, dict) else None
    stream = stream or getattr(config, "stream_dtype", None)
    if stream == "compute" and dtype_bits < 32:
        return (
            "stream_dtype is 'compute' and the weights are narrow: the stream is stored in 16 bits"
        )
    return None
