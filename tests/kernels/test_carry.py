"""Does a stack of blocks that carries (stream, normed) train the same with kernel and reference?"""

import torch
from torch import nn

from resstream.kernels.dispatch import residual_write

WIDTH, N_WRITES, STEPS = 24, 6, 12


class Stack(nn.Module):
    """Writes with ReZero gains and LayerScale; each norms for the next reader."""

    def __init__(self) -> None:
        super().__init__()
        self.sublayers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(N_WRITES))
        self.norms = nn.ParameterList(torch.ones(WIDTH) for _ in range(N_WRITES + 1))
        self.gains = nn.ParameterList(torch.zeros(1) for _ in range(N_WRITES))
        self.gammas = nn.ParameterList(torch.full((WIDTH,), 0.5) for _ in range(N_WRITES))

    def forward(self, stream: torch.Tensor, impl) -> torch.Tensor:
        first = residual_write(
            stream, stream, gain=0.0, weight=self.norms[0], norm="rms", impl=impl
        )
        normed = first.normed
        for i, sublayer in enumerate(self.sublayers):
            branch = torch.tanh(sublayer(normed))
            stream, normed, _ = residual_write(
                stream,
                branch,
                gain=self.gains[i],
                layer_scale=self.gammas[i],
                weight=self.norms[i + 1],
                norm="rms",
                stats=True,
                impl=impl,
            )
        assert normed is not None
        return normed


def losses(impl: str, device: str) -> list[float]:
    """The loss of each step of a small regression, from the same seed."""
    torch.manual_seed(0)
    model = Stack().to(device)
    x, y = (torch.randn(16, WIDTH).to(device) for _ in range(2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    curve = []
    for _ in range(STEPS):
        loss = (model(x, impl) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        curve.append(loss.item())
    return curve


def test_same_loss_curve(device):
    """Within 1e-5 of each loss over all steps, and bit for bit when run again."""
    kernel, reference = losses("triton", device), losses("torch", device)
    assert kernel[-1] < 0.95 * kernel[0]
    torch.testing.assert_close(torch.tensor(kernel), torch.tensor(reference), rtol=1e-5, atol=0)
    assert losses("triton", device) == kernel
