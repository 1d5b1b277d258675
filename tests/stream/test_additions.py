"""Blocks that add in a way that is no sum: named with the reason, and nothing else is."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from resstream.stream.loading import load
from resstream.stream.spec import BlockSpec

WIDTH = 32


class Block(nn.Module):
    """What the blocks below share: two branches, of which they make use or not."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.ff = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.gate, self.vector = nn.Linear(WIDTH, 1), nn.Parameter(torch.randn(WIDTH))
        self.act = nn.ReLU()

    def mixed(self, x: Tensor) -> Tensor:
        return self.mix(self.norm1(x))

    def fed(self, x: Tensor) -> Tensor:
        return self.ff(self.norm2(x))


class Once(Block):
    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x + self.fed(x))


class Last(Block):
    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mixed(x)
        return functional.silu(x + self.fed(x))


class First(Block):
    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(x + self.mixed(x))
        return x + self.fed(x)


class Both(Block):
    def forward(self, x: Tensor) -> Tensor:
        x = self.act(x + self.mixed(x))
        return self.act(x + self.fed(x))


class Pooled(Block):
    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mix(self.norm1(x).mean(1, keepdim=True))
        return x + self.fed(x)


class Narrow(Block):
    def forward(self, x: Tensor) -> Tensor:
        x = x + self.gate(self.norm1(x))
        return x + self.fed(x)


class OverTexts(Block):
    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mixed(x)[0]
        return x + self.fed(x)


class OneVector(Block):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.mix(self.norm1(x).mean((0, 1)))


class Plain(Block):
    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mixed(x)
        return x + self.act(self.fed(x))


class Bias(Block):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.fed(x) + self.vector


class Inside(Block):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.mixed(x))


class Net(nn.Module):
    def __init__(self, block: type[Block]) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, WIDTH)
        self.layers = nn.ModuleList(block() for _ in range(3))
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 50)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.out(self.norm(x))


def described(block: type[Block]) -> BlockSpec:
    torch.manual_seed(0)
    return load(Net(block)).spec.blocks[1]


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (Once, "an activation (relu) stands behind the addition of ff"),
        (Last, "an activation (silu) stands behind the addition of mix and ff"),
        (First, "an activation (tanh) stands behind the addition of mix and ff"),
        (Both, "an activation (relu) stands behind the addition of mix and ff"),
    ],
)
def test_an_activation_behind_the_addition(block: Any, reason: str) -> None:
    found = described(block)
    assert (found.opaque, found.oddity) == (True, "activation")
    assert found.reason is not None
    assert found.reason.startswith(reason)


@pytest.mark.parametrize(
    ("block", "shape", "axes"),
    [
        (Pooled, "[batch, 1, d_model]", "pos"),
        (Narrow, "[batch, pos, 1]", "d_model"),
        (OverTexts, "[1, pos, d_model]", "batch"),
        (OneVector, "[1, 1, d_model]", "batch and pos"),
    ],
)
def test_a_branch_that_is_broadcast(block: Any, shape: str, axes: str) -> None:
    found = described(block)
    assert (found.opaque, found.oddity) == (True, "broadcast")
    assert found.reason is not None
    assert f"a branch of shape {shape} is added" in found.reason
    assert found.reason.endswith(f"repeated along {axes}")


def test_healthy_blocks_and_biases_are_not_odd() -> None:
    assert described(Plain).oddity is None
    for block in (Bias, Inside):
        found = described(block)
        assert (found.opaque, found.oddity) == (True, None)
        assert found.reason is not None
        assert "no set of its parts" in found.reason
