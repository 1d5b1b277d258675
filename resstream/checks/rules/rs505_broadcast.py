"""RS505: a branch of another shape than the stream, which the addition repeats in silence."""

from resstream.checks.rule import Rule

_SCRIPT = """
import torch
import resstream as rs
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = torch.nn.Linear(16, 16)
    def forward(self, x):
        return x + self.mlp(x.mean(1, keepdim=True))
blocks = torch.nn.Sequential(*(Block() for _ in range(4)))
model = torch.nn.Sequential(torch.nn.Embedding(50, 16), blocks, torch.nn.Linear(16, 50))
for finding in rs.check(rs.load(model), torch.randint(50, (8, 64))).findings:
    print(finding.code, finding.statement)
""".strip()

RULE = Rule(
    code="RS505",
    name="write that is broadcast",
    stage="config",
    severity="info",
    what="A branch whose shape is not the stream's, such as [batch, 1, d_model] or [d_model], is "
    "added to it.",
    why="Tensor libraries repeat it along the axis without a word: each token gets the same write, "
    "or every channel, or every text in the batch that of another one.",
    detection="Only where no set of a block's parts sums to its update: the probe of discovery "
    "then looks whether what is left of the update, without up to two parts, is the same along an "
    "axis, on random weights and to rounding. A remark on the architecture.",
    traps="A bias or a position's vector is repeated as well, and rightly: what does not depend on "
    "the stream is left out. A summary of the whole text that is added to every token may be "
    "meant; nothing that is repeated over the batch ever is.",
    fix="assert the branch's shape before the addition; if the repetition is meant, expand it "
    "where it is made",
    source="PyTorch's broadcasting semantics; the block of resstream.nn asserts shapes for it.",
    example=f"cat > pooled.py <<'END'\n{_SCRIPT}\nEND\npython pooled.py",
)
