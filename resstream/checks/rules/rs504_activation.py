"""RS504: an activation behind the addition, which bends the stream itself."""

from resstream.checks.rule import Rule

_SCRIPT = """
import torch
import resstream as rs
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = torch.nn.Linear(16, 16)
    def forward(self, x):
        return torch.relu(x + self.mlp(x))
blocks = torch.nn.Sequential(*(Block() for _ in range(4)))
model = torch.nn.Sequential(torch.nn.Embedding(50, 16), blocks, torch.nn.Linear(16, 50))
for finding in rs.check(rs.load(model), torch.randint(50, (8, 64))).findings:
    print(finding.code, finding.statement)
""".strip()

RULE = Rule(
    code="RS504",
    name="activation behind the addition",
    stage="config",
    severity="info",
    what="A block applies an activation to the stream after it has added its write: act(x + F(x)).",
    why="The skip is no identity any more: a ReLU erases what is negative in the stream in each "
    "block, so that early writes do not reach the end and gradients do not come back; writes can "
    "only add up to what is not negative.",
    detection="Only where no set of a block's parts sums to its update: the probe of discovery "
    "then looks for act(x + write) with the usual activations, behind one or two writes, on "
    "random weights and to rounding. A remark on the architecture.",
    traps="ResNets of 2015 are built like this and work at 50 layers; their authors found the "
    "identity better from 100 layers on (He et al. 2016). A norm behind the addition is Post-LN "
    "(RS502), and an activation inside the branch is what a branch is for.",
    fix="move the activation into the branch, before its last matrix (full pre-activation)",
    source="He et al. (2016), Identity Mappings in Deep Residual Networks, table 2: 6.37 % error "
    "with pre-activation and 6.61 % with ReLU after the addition, ResNet-110 on CIFAR-10.",
    example=f"cat > after.py <<'END'\n{_SCRIPT}\nEND\npython after.py",
)
