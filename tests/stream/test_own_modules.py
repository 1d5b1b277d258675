"""Streams of modules that nobody has heard of, and refusals that say why."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from resstream.errors import (
    DiscoveryError,
    SilentHookError,
    UnknownSiteError,
    UnsupportedModelError,
)
from resstream.stream.loading import load
from resstream.stream.model import StreamModel


class Block(nn.Module):
    """Mixes by a running mean; the second write is scaled; `sign` breaks the sum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix = nn.Linear(width, width)
        self.ff = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        steps = torch.arange(1, x.shape[1] + 1)[None, :, None]
        x = x + 0.5 * self.mix(self.norm1(x).cumsum(1) / steps)
        return x + 0.5 * self.ff(self.norm2(x))


class Opaque(Block):
    """A block whose update is no sum of its parts."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.mix(self.norm1(x)))


class Net(nn.Module):
    def __init__(self, block: Callable[[int], nn.Module], width: int = 32, depth: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, width)
        self.layers = nn.ModuleList(block(width) for _ in range(depth))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 50)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.out(self.norm(x))


def test_an_own_module() -> None:
    torch.manual_seed(0)
    spec = load(Net(Block)).spec
    assert spec.replay_error == 0
    assert spec.causal
    assert (spec.n_layers, spec.d_model, spec.d_vocab) == (4, 32, 50)
    assert (spec.readout.norm, spec.readout.head, spec.embed) == ("norm", "out", "embed")
    writes = spec.blocks[2].writes
    assert [write.module for write in writes] == ["layers.2.mix", "layers.2.ff"]
    assert [write.scale for write in writes] == [0.5, 0.5]
    assert [write.reader for write in writes] == ["layers.2.norm1", "layers.2.norm2"]
    assert writes[1].output_matrix == "layers.2.ff.2.weight"


def test_structure_does_not_depend_on_the_weights() -> None:
    """A write that is exactly zero, or a NaN, must not hide who writes."""
    torch.manual_seed(0)
    net = Net(Block)
    healthy = load(net).spec
    with torch.no_grad():
        net.layers[1].ff[2].weight.zero_()  # pyright: ignore
        net.layers[1].ff[2].bias.zero_()  # pyright: ignore
        net.layers[2].mix.weight[0, 0] = torch.nan  # pyright: ignore
    damaged = load(net).spec
    assert [write.module for write in damaged.writes] == [write.module for write in healthy.writes]
    assert damaged.replay_error == 0


def test_an_opaque_block_is_named_with_the_reason() -> None:
    torch.manual_seed(0)
    model = load(Net(Opaque))
    block = model.spec.blocks[0]
    assert block.opaque
    assert block.reason is not None and "no set of its parts sums to block(x) - x" in block.reason
    assert [write.name for write in block.writes] == ["block"]
    tokens = torch.arange(6)[None]
    with torch.no_grad():
        clean = model.run(tokens, {})
        out = model.run(tokens, {f"blocks.{i}.hook_block_out": torch.zeros_like for i in range(4)})
        torch.testing.assert_close(out, model.readout(model.begin(tokens).stream))
    assert not torch.equal(out, clean)


def test_discovery_leaves_the_module_as_it_was() -> None:
    torch.manual_seed(0)
    net = Net(Block)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    model = load(net)
    model.readout(model.begin(torch.arange(5)[None]).stream)
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert all("forward" not in vars(layer) for layer in net.layers)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in net.modules())


class Dense(nn.Module):
    """DenseNet-like: every layer appends to what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.layers = nn.ModuleList(nn.Linear(8 * (i + 1), 8) for i in range(3))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = torch.cat([x, layer(x)], -1)
        return x


def test_several_streams_are_refused() -> None:
    with pytest.raises(DiscoveryError, match="'layers' do not hand on one stream"):
        load(Dense())


def test_a_module_without_blocks_is_refused() -> None:
    with pytest.raises(DiscoveryError, match="no residual stream found in"):
        load(nn.Sequential(nn.Embedding(10, 4)))


def test_encoder_decoders_are_refused() -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=50, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
    with pytest.raises(UnsupportedModelError, match="encoder-decoder"):
        load(T5ForConditionalGeneration(config))


def test_a_module_that_reads_floats_needs_an_example() -> None:
    class Tower(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Block(16) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    torch.manual_seed(0)
    tower = Tower()
    with pytest.raises(DiscoveryError, match="pass example="):
        load(tower)
    model = load(tower, example=torch.randn(2, 5, 16))
    assert model.spec.n_layers == 2
    assert model.spec.replay_error == 0


def test_unknown_sites_name_the_nearest(tiny_llama: Any) -> None:
    model = StreamModel(tiny_llama(), name="tiny")
    with pytest.raises(
        UnknownSiteError, match=r"6 blocks \(0..5\); did you mean 'blocks.\d.hook_attn_out'"
    ):
        model.run(torch.arange(4)[None], {"blocks.9.attn_out": lambda value: None})


def test_the_native_model_has_its_final_norm() -> None:
    assert load("demo").spec.readout.norm == "model.ln_final"


def test_a_hook_that_never_fires_is_an_error(tiny_llama: Any) -> None:
    model = StreamModel(tiny_llama(), name="tiny")
    model.spec.blocks[1].writes[0]
    module = model.module.get_submodule("model.layers.1")
    module.forward = lambda hidden_states, **kwargs: hidden_states  # pyright: ignore
    with (
        torch.no_grad(),
        pytest.raises(SilentHookError, match=r"never reached blocks.1.hook_attn_out"),
    ):
        model.run(torch.arange(4)[None], {"blocks.1.attn_out": lambda value: None})


def test_a_gate_that_two_writes_share_is_no_constant() -> None:
    """ReZero: in the twin, whose gate is drawn, scale and module could be taken for a constant."""
    from resstream.nn.config import TransformerConfig
    from resstream.nn.rules import ReZero
    from resstream.nn.transformer import ResidualTransformer

    config = TransformerConfig(
        n_layers=2, d_model=16, n_heads=2, d_vocab=20, n_ctx=16, rule=ReZero(alpha=0.5)
    )
    for write in load(ResidualTransformer(config)).spec.writes:
        assert write.module == f"blocks.{write.layer}.hook_{write.name}_out"
        assert write.scale == 1.0
        assert write.residue < 1e-4
