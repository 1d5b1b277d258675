"""RS303: writes that are rounded away when they are added to a narrow stream."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from resstream.analysis.points import run_streams, stream_points
from resstream.checks.proof import plain
from resstream.checks.report import Finding
from resstream.checks.rule import Rule
from resstream.recording.ledger import row_norms
from resstream.stream.model import StreamModel
from resstream.stream.texts import Corpus

LOSSY = 0.1

_SCRIPT = """
import torch
import resstream as rs
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(
    vocab_size=50, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4
)
model = LlamaForCausalLM(config).to(torch.bfloat16)
model.model.embed_tokens.weight.data.mul_(300)
for finding in rs.check(rs.load(model), torch.randint(50, (8, 64)), select="RS303").findings:
    print(finding.code, finding.status, finding.statement)
""".strip()

RULE = Rule(
    code="RS303",
    name="lossy addition",
    stage="stream",
    severity="info",
    what="A write is so small beside a 16-bit stream that a good part of it is rounded away.",
    why="What the layer computes does not arrive, and in training its gradient is about a write "
    "that was never made.",
    detection="Only where the model runs in 16 bits (--dtype, or as it was loaded): one sequence "
    "is read before and after every write, and |(new stream - old stream) - write| / |write| is "
    f"above {LOSSY:g} for the median token. A measurement, and a remark: the loss may not care.",
    traps="In float32 nothing is ever found: check in the type that the model is used in. Sinks "
    "have huge streams and lose everything; the median over tokens leaves them out.",
    fix="keep the stream in float32 (residual_in_fp32, stream_dtype: float32), or make the write "
    "larger",
    source="Micikevicius et al. (2018), Mixed Precision Training.",
    example=f"cat > narrow.py <<'END'\n{_SCRIPT}\nEND\npython narrow.py",
)


def look(model: StreamModel, corpus: Corpus) -> list[Finding]:
    """Writes that lose more than a tenth on the way, in a model that runs in 16 bits."""
    if torch.finfo(model.dtype).bits >= 32:
        return []
    if any(block.stream_norms or len(block.writes) != 2 or block.parallel or block.opaque
           for block in model.spec.blocks):  # fmt: skip
        return []  # nothing is just added, or what was added can't be told apart
    errors = _errors(model, corpus)
    return [
        Finding(
            code=RULE.code,
            status="confirmed",
            severity=RULE.severity,
            layer=write.layer,
            write=write.name,
            site=write.site,
            statement=(
                f"{write.label} is rounded: {error:.0%} of its write is lost in the addition"
            ),
            evidence=(plain("error of the realised write, over its norm (median)", error, LOSSY),),
            remedy=RULE.fix,
        )
        for write, error in zip(model.spec.writes, errors, strict=True)
        if error > LOSSY
    ]


def _errors(model: StreamModel, corpus: Corpus) -> list[float]:
    """|(new - old) - write| / |write| of every write, medians over the tokens of one sequence."""
    (batch,) = corpus.head(1).batches()
    kept: dict[str, Tensor] = {}

    def keeping(site: str) -> Callable[[Tensor], None]:
        return lambda value: kept.update({site: value.detach().double()})

    writes = model.spec.writes
    with model.hooked({write.site: keeping(write.site) for write in writes}):
        streams, _ = run_streams(model, batch.tokens, stream_points(model.spec))
    found: list[float] = []
    for write, old, new in zip(writes, streams, streams[1:], strict=False):
        own = kept[write.site]
        with np.errstate(divide="ignore", invalid="ignore"):
            error = row_norms(new.double() - old.double() - own) / row_norms(own)
        found.append(float(np.nanmedian(error)) if np.isfinite(error).any() else 0.0)
    return found
