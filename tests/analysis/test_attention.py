"""Attention readings: heads that were made even, made sinks, made silent."""

import numpy as np
import pytest
import torch

import resstream as rs
from resstream.analysis.attention import AttentionResult, _fused_pattern, attention
from resstream.errors import UnsupportedModelError
from tests.analysis import families


def test_even_attention_has_entropy_one():
    model, tokens = rs.load(families.make("llama")), families.tokens(3, 10)
    with torch.no_grad():
        model.module.get_parameter("model.layers.1.self_attn.q_proj.weight").zero_()
    result = attention(model, tokens)
    np.testing.assert_allclose(result.entropy[1], 1, atol=1e-6)
    expected = np.mean([1 / (query + 1) for query in range(1, 10)])
    np.testing.assert_allclose(result.first_share[1], expected, rtol=1e-5)
    assert (result.entropy[[0, 2]] < 1).all()
    assert model.module.config._attn_implementation == "sdpa"


def test_write_norms_are_those_of_the_heads():
    model, tokens = rs.load(families.make("gpt2")), families.tokens(2, 6)
    result = attention(model, tokens)
    layer = model.module.get_submodule("transformer.h.1.attn.c_proj")
    kept = {}
    handle = layer.register_forward_pre_hook(lambda module, args: kept.update(z=args[0]))
    with torch.no_grad():
        model.forward(tokens)
        matrix = layer.get_parameter("weight").view(4, 8, 32)
        parts = kept["z"].unflatten(-1, (4, 8)).transpose(1, 2) @ matrix
    handle.remove()
    expected = parts.norm(dim=-1).mean((0, 2)).numpy()
    np.testing.assert_allclose(result.write_norm[1], expected, rtol=1e-4)


def test_a_head_that_sinks_and_is_silent_is_dormant():
    model, tokens = rs.load(families.make("gpt2")), families.tokens(3, 10)
    with torch.no_grad():
        layer = model.module.get_submodule("transformer.h.2.attn.c_attn")
        weight, bias = layer.get_parameter("weight"), layer.get_parameter("bias")
        model.module.get_parameter("transformer.wpe.weight")[0, 0] += 100
        weight[:, :8] = 0
        bias[:8] = 10.0  # the query of head 0 asks for what only position 0 has
        weight[:, 32:40] = 0
        weight[0, 32:40] = 10.0
        weight[:, 64:72] *= 1e-3
        bias[64:72] *= 1e-3
    result = attention(model, tokens)
    assert result.first_share[2, 0] > 0.95
    assert result.sink_rate[2, 0] == 1
    assert result.is_dormant[2].tolist() == [True, False, False, False]


def test_models_without_patterns_are_refused():
    with pytest.raises(UnsupportedModelError, match="no causal attention"):
        attention(rs.load(families.make("mamba")), families.tokens())


def test_round_trip():
    result = attention(rs.load(families.make("opt")), families.tokens())
    again = AttentionResult.from_json(result.to_json())
    np.testing.assert_array_equal(again.is_dormant, result.is_dormant)
    assert again.is_dormant.dtype == bool
    assert len(result.to_dataframe()) == 3 * 4
    assert result.plot().data


@pytest.mark.parametrize("form", ["causal", "mask", "added", "grouped"])
def test_the_pattern_of_fused_attention_is_what_it_weighs_with(form):
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 2, 4, 6, 8, generator=generator)
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    options = {
        "causal": {"is_causal": True},
        "mask": {"attn_mask": mask, "scale": 0.3},
        "added": {"attn_mask": torch.randn(6, 6, generator=generator)},
        "grouped": {"is_causal": True, "enable_gqa": True},
    }[form]
    if form == "grouped":
        key, value = key[:, :2], value[:, :2]
    out = torch.nn.functional.scaled_dot_product_attention(query, key, value, **options)
    pattern = _fused_pattern(query, key, value, **options)
    wide = value.repeat_interleave(4 // value.shape[1], dim=1)
    torch.testing.assert_close(pattern @ wide, out)


def test_the_native_model_is_read(demo):
    result = attention(demo, demo.tokenizer("Once upon a time", return_tensors="pt")["input_ids"])
    assert result.entropy.shape == (8, 4)
    assert np.isfinite(result.entropy).all()
    assert ((result.first_share > 0) & (result.first_share <= 1)).all()


def test_a_second_reading_is_the_first():
    model, tokens = rs.load(families.make("llama")), families.tokens(2, 6)
    first, second = attention(model, tokens), attention(model, tokens)
    np.testing.assert_array_equal(first.entropy, second.entropy)
    assert not any(part._forward_hooks for part in model.module.modules())
