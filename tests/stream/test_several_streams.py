"""Designs of several streams are refused by the name of the design, by discovery and recorder."""

import pytest
import torch
from torch import Tensor, nn

import resstream as rs
from resstream.errors import DiscoveryError
from resstream.stream.loading import load
from resstream.stream.model import StreamModel

WIDTH, GROWTH, N_STREAMS = 16, 4, 4


class Readout(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 30)

    def forward(self, stream: Tensor) -> Tensor:
        return self.head(self.norm(stream))


class Dense(nn.Module):
    """DenseNet: each block reads what all blocks before it have given, side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, WIDTH)
        widths = (WIDTH + GROWTH * number for number in range(3))
        self.blocks = nn.ModuleList(nn.Linear(width, GROWTH) for width in widths)
        self.readout = Readout(WIDTH + 3 * GROWTH)

    def forward(self, tokens: Tensor) -> Tensor:
        found = self.embed(tokens)
        for block in self.blocks:
            found = torch.cat([found, block(found).relu()], dim=-1)
        return self.readout(found)


class HyperBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Linear(WIDTH, WIDTH)
        self.mix = nn.Parameter(torch.eye(N_STREAMS) + 0.1 * torch.randn(N_STREAMS, N_STREAMS))
        self.read = nn.Parameter(torch.randn(N_STREAMS))

    def forward(self, streams: Tensor) -> Tensor:
        write = self.mlp(torch.einsum("bpnd,n->bpd", streams, self.read)).relu()
        return torch.einsum("bpnd,nm->bpmd", streams, self.mix) + write[:, :, None]


class Hyper(nn.Module):
    """Hyper-connections: n streams, mixed in every block."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, WIDTH)
        self.blocks = nn.ModuleList(HyperBlock() for _ in range(3))
        self.readout = Readout(WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        streams = self.embed(tokens)[:, :, None].expand(-1, -1, N_STREAMS, -1)
        for block in self.blocks:
            streams = block(streams)
        return self.readout(streams.sum(2))


class OverDepth(nn.Module):
    """Attention over depth: each block reads a softmax-weighted sum of all earlier outputs."""

    def __init__(self, *, inside: bool) -> None:
        super().__init__()
        self.inside = inside
        self.embed = nn.Embedding(30, WIDTH)
        self.blocks = nn.ModuleList(DepthBlock() for _ in range(3))
        self.readout = Readout(WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        outputs = [self.embed(tokens)]
        for block in self.blocks:
            assert isinstance(block, DepthBlock)
            outputs.append(block(outputs) if self.inside else block(block.mixed(outputs)))
        return self.readout(outputs[-1])


class DepthBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.mlp = nn.Parameter(torch.randn(WIDTH)), nn.Linear(WIDTH, WIDTH)

    def mixed(self, outputs: list[Tensor]) -> Tensor:
        stacked = torch.stack(outputs, dim=-1)
        weights = torch.einsum("bpdl,d->bpl", stacked, self.query).softmax(-1)
        return torch.einsum("bpdl,bpl->bpd", stacked, weights)

    def forward(self, given: Tensor | list[Tensor]) -> Tensor:
        return self.mlp(given if isinstance(given, Tensor) else self.mixed(given)).relu()


class Shrinking(nn.Module):
    """Widths that change for no reason that has a name."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, WIDTH)
        self.blocks = nn.ModuleList([nn.Linear(WIDTH, 8), nn.Linear(8, WIDTH)])
        self.readout = Readout(WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        stream = self.embed(tokens)
        for block in self.blocks:
            stream = block(stream)
        return self.readout(stream)


def refused(module: nn.Module, match: str) -> None:
    with pytest.raises(DiscoveryError, match=match):
        load(module)
    with pytest.raises(DiscoveryError, match=match):
        rs.record(StreamModel(module, name="several"), torch.zeros(1, 4, dtype=torch.long))


def test_concatenation_is_refused_by_name() -> None:
    refused(Dense(), "'blocks' do not hand on one stream .*DenseNet-like concatenation")


def test_hyper_connections_are_refused_by_name() -> None:
    refused(Hyper(), "'blocks' do not hand on one stream .*hyper-connections")


@pytest.mark.parametrize("inside", [True, False], ids=["list", "mixture"])
def test_attention_over_depth_is_refused_by_name(inside: bool) -> None:
    refused(OverDepth(inside=inside), "'blocks' do not hand on one stream .*attention over depth")


def test_other_designs_are_refused_without_a_name() -> None:
    refused(Shrinking(), "several streams, or widths that change")
