"""RS106: attention that looks at the first token only and writes next to nothing."""

import numpy as np

from resstream.checks.rule import Rule, Suspect
from resstream.checks.rules.rs105_even_attention import idle_suspect
from resstream.checks.scene import Scene

SINK = 0.95
_SMALL = 0.1
_HEADS = 0.9

_SCRIPT = """
import torch
import resstream as rs
model = rs.load("demo")
block = model.module.model.blocks[3]
tokens = torch.tensor([[model.tokenizer.bos_token_id, *range(20, 120)]])
with torch.no_grad():
    streams = []
    model.run(tokens, {"blocks.3.hook_resid_pre": streams.append})
    first, *others = block.ln1(streams[0])[0]
    usual = torch.stack(others).mean(0)
    for weight in (block.attn.q_proj.weight, block.attn.k_proj.weight):
        weight.zero_()
    block.attn.q_proj.weight[15::32] = 2500 * usual / usual.norm() ** 2  # what turns slowest
    block.attn.k_proj.weight[15::32] = (first - usual) / (first - usual).norm() ** 2
    block.attn.o_proj.weight.mul_(0.02)
for finding in rs.check(model, select="RS106").findings:
    print(finding.code, finding.status, finding.statement)
""".strip()

RULE = Rule(
    code="RS106",
    name="sink-only attention",
    stage="collapse",
    severity="warning",
    what="Nearly all heads of a layer look at the first token only, and the layer writes next to "
    "nothing.",
    why="The whole attention of the layer is switched off.",
    detection=f"At least {_HEADS:.0%} of the heads give the first token more than {SINK:g} of "
    f"their attention, and the write is below {_SMALL:g} of its neighbours' size; confirmed if "
    "taking it away changes nothing.",
    traps="Attention sinks are ordinary: most layers of SmolLM2 have a sink rate of 1, and many "
    "heads rest there until they are needed. A sink alone is never reported.",
    fix="restore the layer's attention from an earlier checkpoint; a layer that never attends can "
    "be removed",
    source="Gu et al. (2024), arXiv:2410.10781; Guo et al. (2024), Active-Dormant Attention Heads.",
    example=f"cat > sink.py <<'END'\n{_SCRIPT}\nEND\npython sink.py",
    suspects=lambda scene: _suspects(scene),
)


def _suspects(scene: Scene) -> list[Suspect]:
    found: list[Suspect] = []
    for index, write in enumerate(scene.writes):
        shares = scene.first_shares.get(write.layer)
        if write.name != "attn" or shares is None:
            continue
        resting = float(np.mean(shares > SINK))
        if resting >= _HEADS and scene.readings.ratio[index] < _SMALL:
            numbers = {
                "share of heads that look at the first token only": resting,
                "write norm over the median of its neighbours": float(scene.readings.ratio[index]),
            }
            claim = "is collapsed: its heads look at the first token only, and it changes nothing"
            found.append(idle_suspect(scene, index, RULE.code, claim, numbers))
    return found
