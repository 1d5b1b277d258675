"""The engine's identities: replay, no-op hooks, edits that write back what they read."""

from typing import Any

import pytest
import torch

from resstream.stream.model import StreamModel


@pytest.fixture
def model(tiny_llama: Any) -> StreamModel:
    return StreamModel(tiny_llama(), name="tiny")


TOKENS = torch.arange(24).reshape(2, 12)


def test_replay_equals_the_forward(model: StreamModel) -> None:
    with torch.no_grad():
        frame = model.begin(TOKENS)
        stream = frame.stream
        for layer in range(model.spec.n_layers):
            stream = model.run_block(layer, stream, frame)
        assert torch.equal(model.readout(stream), model.forward(TOKENS))


def test_it_equals_transformers(model: StreamModel, tiny_llama: Any) -> None:
    with torch.no_grad():
        assert torch.equal(tiny_llama()(TOKENS).logits, model.forward(TOKENS))


def test_hooks_that_read_or_write_back_change_nothing(model: StreamModel) -> None:
    with torch.no_grad():
        clean = model.forward(TOKENS)
        assert torch.equal(model.run(TOKENS, {site: lambda v: None for site in model.sites}), clean)
        same = {site: lambda v: v.clone() for site in model.sites if "mid" not in site}
        assert torch.equal(model.run(TOKENS, same), clean)
        # The stream between two writes is put back as block input plus first write: to rounding.
        mid = {site: lambda v: v.clone() for site in model.sites if "mid" in site}
        torch.testing.assert_close(model.run(TOKENS, mid), clean, rtol=1e-5, atol=1e-5)


def test_hooks_are_gone_afterwards(model: StreamModel) -> None:
    with torch.no_grad():
        clean = model.forward(TOKENS)
        with pytest.raises(ZeroDivisionError), model.hooked({"blocks.0.mlp_out": lambda v: v * 0}):
            assert not torch.equal(model.forward(TOKENS), clean)
            raise ZeroDivisionError
        assert torch.equal(model.forward(TOKENS), clean)


def test_ablating_every_write_leaves_the_embedding(model: StreamModel) -> None:
    with torch.no_grad():
        hooks = {write.site: torch.zeros_like for write in model.spec.writes}
        expected = model.readout(model.begin(TOKENS).stream)
        assert torch.equal(model.run(TOKENS, hooks), expected)


def test_patching_every_position_at_one_depth_gives_the_other_run(model: StreamModel) -> None:
    other = TOKENS.flip(1)
    kept: list[torch.Tensor] = []
    with torch.no_grad():
        clean = model.run(TOKENS, {"blocks.3.resid_pre": lambda v: kept.append(v.clone())})
        patched = model.run(other, {"blocks.3.resid_pre": lambda v: kept[0]})
    assert torch.equal(patched, clean)


def test_short_names_are_the_same_sites(model: StreamModel) -> None:
    with torch.no_grad():
        long = model.run(TOKENS, {"blocks.2.hook_attn_out": torch.zeros_like})
        assert torch.equal(model.run(TOKENS, {"blocks.2.attn_out": torch.zeros_like}), long)


def test_the_readout_takes_any_shape(model: StreamModel) -> None:
    with torch.no_grad():
        frame = model.begin(TOKENS)
        whole = model.readout(frame.stream)
        torch.testing.assert_close(model.readout(frame.stream[:, -1:]), whole[:, -1:])


def test_the_weights_hash_sees_one_bit(model: StreamModel, tiny_llama: Any) -> None:
    same, other = StreamModel(tiny_llama(), name="same"), StreamModel(tiny_llama(), name="other")
    assert same.weights_hash == model.weights_hash
    with torch.no_grad():
        other.module.get_parameter("model.norm.weight")[3] += 1e-6
    assert other.weights_hash != model.weights_hash
