"""Does the norm stand where each placement says, and what is refused?"""

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from resstream.errors import ConfigError
from resstream.nn.config import LayerNorm, TransformerConfig
from resstream.nn.norms import StreamNorm
from resstream.nn.placements import PLACEMENTS
from resstream.nn.rules import RULES, Fixup, SubLN
from resstream.nn.transformer import ResidualTransformer

SIZES: dict[str, Any] = {"n_layers": 2, "d_model": 16, "n_heads": 2, "d_vocab": 30, "n_ctx": 16}


def filled(**changes: Any) -> ResidualTransformer:
    """In float64, with every parameter away from its start."""
    model = ResidualTransformer(TransformerConfig(**(SIZES | changes))).eval().double()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(0.3 * noise + 0.2)
    return model


def some_tokens() -> Tensor:
    return torch.randint(0, 30, (2, 5), generator=torch.Generator().manual_seed(1))


def rms(values: Tensor, norm: Any) -> Tensor:
    return values / (values.square().mean(-1, keepdim=True) + 1e-6).sqrt() * norm.weight


def attention_by_hand(attn: Any, read: Tensor, turns: Any = None) -> Tensor:
    """The heads' outputs side by side, ``[batch, pos, n_heads, d_head]``; no positions."""
    query, key, value = (
        matrix(read).unflatten(-1, (2, 8)) for matrix in (attn.q_proj, attn.k_proj, attn.v_proj)
    )
    scores = torch.einsum("bqhd,bkhd->bhqk", query, key) / 8**0.5
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    pattern = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    return torch.einsum("bhqk,bkhd->bqhd", pattern, value)


def branches(model: ResidualTransformer) -> tuple[Any, dict[str, Tensor]]:
    _, cache = model.run_with_cache(some_tokens())
    return model.blocks[1], {
        name.removeprefix("blocks.1."): value
        for name, value in cache.items()
        if name.startswith("blocks.1.")
    }


def test_sub_ln_norms_before_both_output_matrices():
    block, seen = branches(filled(placement="sub", positions="none"))
    heads = attention_by_hand(block.attn, rms(seen["hook_resid_pre"], block.ln1)).flatten(2)
    expected = block.attn.o_proj(rms(heads, block.attn.ln_inner))
    torch.testing.assert_close(seen["hook_attn_out"], expected)
    hidden = F.gelu(block.mlp.up_proj(rms(seen["hook_resid_mid"], block.ln2)))
    expected = block.mlp.down_proj(rms(hidden, block.mlp.ln_inner))
    torch.testing.assert_close(seen["hook_mlp_out"], expected)


def test_normformer_norms_after_attention_scales_heads_and_norms_inside_the_mlp():
    block, seen = branches(filled(placement="normformer", positions="none"))
    heads = attention_by_hand(block.attn, rms(seen["hook_resid_pre"], block.ln1))
    scaled = heads * block.attn.head_scale.gain[:, None]
    expected = rms(block.attn.o_proj(scaled.flatten(2)), block.ln1_post)
    torch.testing.assert_close(seen["hook_attn_out"], expected)
    hidden = F.gelu(block.mlp.up_proj(rms(seen["hook_resid_mid"], block.ln2)))
    expected = block.mlp.down_proj(rms(hidden, block.mlp.ln_inner))
    torch.testing.assert_close(seen["hook_mlp_out"], expected)
    assert block.ln2_post is None


def test_fixup_has_a_scalar_bias_around_every_matrix():
    block, seen = branches(filled(rule=Fixup(), positions="none"))
    attn, mlp = block.attn, block.mlp
    heads = attention_by_hand(attn, seen["hook_resid_pre"] + attn.bias_in.bias).flatten(2)
    expected = attn.o_proj(heads + attn.bias_inner.bias) + attn.bias_out.bias
    torch.testing.assert_close(seen["hook_attn_branch"], expected)
    hidden = F.gelu(mlp.up_proj(seen["hook_resid_mid"] + mlp.bias_in.bias) + mlp.bias_act.bias)
    expected = mlp.down_proj(hidden + mlp.bias_inner.bias) + mlp.bias_out.bias
    torch.testing.assert_close(seen["hook_mlp_branch"], expected)


def test_sandwich_with_inner_norms_that_do_nothing_is_pre():
    """The branch's norm replaced by the identity: what is left is Pre-LN, exactly."""
    sandwich = filled(placement="sandwich")
    pre = filled(placement="pre")
    pre.load_state_dict(sandwich.state_dict(), strict=False)
    assert not torch.allclose(sandwich(some_tokens()), pre(some_tokens()))
    for block in sandwich.blocks:
        block.ln1_post = block.ln2_post = StreamNorm(None, 16)
    assert torch.equal(sandwich(some_tokens()), pre(some_tokens()))


def test_sandwich_of_a_normed_branch_is_after_behind_a_read_norm():
    """Sandwich reads through a norm, `after` does not; with that norm gone they are one."""
    sandwich, after = filled(placement="sandwich"), filled(placement="after")
    after.load_state_dict(sandwich.state_dict(), strict=False)
    assert not torch.allclose(sandwich(some_tokens()), after(some_tokens()))
    for block in sandwich.blocks:
        block.ln1 = block.ln2 = StreamNorm(None, 16)
    assert torch.equal(sandwich(some_tokens()), after(some_tokens()))


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_post_norms_the_stream_after_each_write(norm):
    model = filled(placement="post", norm=norm)
    block, seen = branches(model)
    for name, before, after in (
        ("attn", "hook_resid_pre", "hook_resid_mid"),
        ("mlp", "hook_resid_mid", "hook_resid_post"),
    ):
        ln = block.ln1 if name == "attn" else block.ln2
        torch.testing.assert_close(seen[after], ln(seen[before] + seen[f"hook_{name}_out"]))
    assert model.ln_final.weight is None


def test_embedding_norm():
    model = filled(placement="sandwich", embed_norm=True)
    _, cache = model.run_with_cache(some_tokens())
    expected = rms(model.embed(some_tokens()), model.ln_embed)
    torch.testing.assert_close(cache["hook_embed"], expected)
    assert filled().ln_embed is None


@pytest.mark.parametrize("placement", [p for p in PLACEMENTS if p != "post"])
def test_parallel_blocks_read_one_stream(placement):
    model = filled(placement=placement, parallel=True)
    block, seen = branches(model)
    assert "hook_resid_mid" not in seen
    total = seen["hook_resid_pre"] + seen["hook_attn_out"] + seen["hook_mlp_out"]
    torch.testing.assert_close(seen["hook_resid_post"], total)
    read = block.read("mlp", seen["hook_resid_pre"], None)[0]
    torch.testing.assert_close(seen["hook_mlp_branch"], block.mlp(read))
    serial = filled(placement=placement)
    serial.load_state_dict(model.state_dict())
    assert not torch.allclose(serial(some_tokens()), model(some_tokens()))


REFUSALS = [
    ({"placement": "residual"}, r"placement must be one of pre, .*'residual'.*no one stream"),
    ({"placement": "peri"}, r"got 'peri': Peri-LN is 'sandwich'"),
    ({"placement": "pre", "rule": "admin"}, r"placement must be one of post for the rule 'admin'"),
    ({"placement": "none", "rule": SubLN()}, r"one of sub for the rule 'sub_ln', got 'none'"),
    ({"rule": "hyper_connections"}, r"got 'hyper_connections': .* no one stream"),
    ({"rule": {"kind": "dense"}}, r"got 'dense': that is concatenation"),
    ({"parallel": True, "rule": "deepnorm"}, r"parallel must be False .*'deepnorm'.* got True"),
    ({"parallel": True, "placement": "post"}, r"parallel must be False .*'post'.* got True"),
    ({"parallel": 1}, r"parallel must be one of True, False, got 1"),
    ({"norm": "batch_norm"}, r"norm.kind must be one of layer_norm, rms_norm, got 'batch_norm'"),
    ({"rule": {"kind": "deepnorm", "alpha": 2.0}}, r"deepnorm.beta must be a number .* got None"),
    ({"rule": {"kind": "deepnorm", "beta": 2.0}}, r"deepnorm.alpha must be a number .* got None"),
    ({"rule": {"kind": "deepnorm", "form": "seed"}}, r"form must be one of 'skip', 'branch'"),
    ({"rule": {"kind": "completep", "alpha": 1.5}}, r"completep.alpha .*at most 1.* got 1.5"),
    ({"rule": {"kind": "completep", "base_depth": 0}}, r"base_depth .* at least 1, got 0"),
    ({"rule": {"kind": "tfixup", "stack": "both"}}, r"tfixup.stack must be one of .*, got 'both'"),
    ({"rule": {"kind": "adaln_zero", "d_condition": 0}}, r"d_condition .* at least 1, got 0"),
    ({"rule": {"kind": "adapter_skip", "width": 1.5}}, r"adapter_skip.width .* got 1.5"),
    ({"rule": {"kind": "weighted", "learned": 1}}, r"weighted.learned must be .* got 1"),
    ({"rule": {"kind": "highway", "bias": "no"}}, r"highway.bias .* got 'no'"),
    ({"rule": {"kind": "residual_attention", "lambda": 1}}, r"unknown keys \['lambda'\]"),
    ({"n_layers": -1}, r"n_layers must be a whole number of at least 1, got -1"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSALS)
def test_refusals_name_key_value_and_what_is_allowed(changes, message):
    with pytest.raises(ConfigError, match=message):
        TransformerConfig.from_dict(SIZES | changes)


def test_every_rule_builds_at_each_of_its_placements():
    for rule in RULES:
        assert rule.placement in rule.placements
        for placement in rule.placements:
            model = filled(rule=rule(), placement=placement, norm=LayerNorm())
            assert model(some_tokens()).isfinite().all()
