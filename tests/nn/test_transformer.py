"""Is the native model what its formulas say, with every step hooked?"""

import math
from typing import Any

import pytest
import torch

from resstream.nn.config import LayerNorm, LearnedPositions, NoPositions, TransformerConfig
from resstream.nn.initialisation import Depth
from resstream.nn.rules import RULES, DeepNorm, LayerScale, Plain, ReZero, ReZeroNorm
from resstream.nn.transformer import ResidualTransformer

SIZES: dict[str, Any] = {"n_layers": 3, "d_model": 32, "n_heads": 4, "d_vocab": 50, "n_ctx": 16}
ADDITIVE = (Plain(), LayerScale(init=0.3), ReZero(alpha=0.4), ReZeroNorm(alpha=0.4))


def native(seed: int = 0, **changes) -> ResidualTransformer:
    torch.manual_seed(seed)
    return ResidualTransformer(TransformerConfig(**(SIZES | changes))).eval()


def block_of(model: ResidualTransformer, layer: int) -> Any:
    return model.blocks[layer]


def some_tokens(batch: int = 2, pos: int = 7) -> torch.Tensor:
    return torch.randint(0, 50, (batch, pos), generator=torch.Generator().manual_seed(1))


def filled(model: ResidualTransformer) -> ResidualTransformer:
    """Every parameter made large, so that no term hides behind a small start."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3 + 0.1)
    return model


@pytest.mark.parametrize("rule", [rule() for rule in RULES], ids=lambda rule: rule.kind)
def test_every_hook_fires_and_every_gradient_is_finite(rule):
    model = native(rule=rule)
    logits, cache = model.run_with_cache(some_tokens())
    assert logits.shape == (2, 7, 50)
    assert set(cache.keys()) == set(model.hook_dict)
    assert {"hook_embed", "ln_final.hook_normalized"} <= set(cache.keys())
    for layer in range(3):
        for part in ("resid_pre", "resid_mid", "resid_post", "attn_branch", "mlp_out"):
            assert cache[f"blocks.{layer}.hook_{part}"].shape == (2, 7, 32)
    filled(model)(some_tokens()).logsumexp(-1).sum().backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert all(grad is not None and grad.isfinite().all() for grad in gradients.values())


@pytest.mark.parametrize("placement", ["pre", "sandwich", "after", "none"])
def test_stream_is_embedding_plus_writes(placement):
    for rule in ADDITIVE:
        if placement not in rule.placements:
            continue
        model = filled(native(rule=rule, placement=placement))
        _, cache = model.run_with_cache(some_tokens())
        total = cache["hook_embed"]
        for layer in range(3):
            total = total + cache[f"blocks.{layer}.hook_attn_out"]
            torch.testing.assert_close(total, cache[f"blocks.{layer}.hook_resid_mid"])
            total = total + cache[f"blocks.{layer}.hook_mlp_out"]
            torch.testing.assert_close(total, cache[f"blocks.{layer}.hook_resid_post"])


def test_write_is_scale_times_branch():
    for rule in ADDITIVE[1:]:
        _, cache = filled(native(rule=rule)).run_with_cache(some_tokens())
        for name in ("attn", "mlp"):
            parts = [cache[f"blocks.1.hook_{name}_{part}"] for part in ("scale", "branch", "out")]
            torch.testing.assert_close(parts[0] * parts[1], parts[2])
            assert parts[0].dtype == torch.float32
    assert "blocks.1.hook_attn_scale" not in native(rule=Plain()).hook_dict


def test_sandwich_write_is_the_normed_branch():
    model = native(placement="sandwich")
    _, cache = model.run_with_cache(some_tokens())
    branch, write = cache["blocks.0.hook_mlp_branch"], cache["blocks.0.hook_mlp_out"]
    expected = branch / (branch.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(write, expected)
    assert not torch.allclose(write, branch)


def test_deepnorm_formula():
    model = filled(native(rule=DeepNorm(), norm=LayerNorm()))
    _, cache = model.run_with_cache(some_tokens())
    alpha = (2 * 3) ** 0.25
    for layer in range(3):
        before = cache[f"blocks.{layer}.hook_resid_mid"]
        summed = alpha * before + cache[f"blocks.{layer}.hook_mlp_out"]
        norm = block_of(model, layer).ln2
        centred = summed - summed.mean(-1, keepdim=True)
        spread = (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
        expected = centred / spread * norm.weight + norm.bias
        torch.testing.assert_close(cache[f"blocks.{layer}.hook_resid_post"], expected)
    assert model.ln_final.weight is None


def test_deepnorm_constants_and_initial_gain():
    rule, depth = DeepNorm(), Depth(n_layers=100, n_writes=200)
    assert rule.constants(depth) == pytest.approx((3.7606, 0.18803), abs=1e-4)
    assert rule.init_gain("value", depth) == rule.constants(depth)[1]
    assert [rule.init_gain(role, depth) for role in ("query", "key", "embed")] == [1.0] * 3
    assert DeepNorm(alpha=2.0, beta=0.5).constants(depth) == (2.0, 0.5)
    model = native(rule=rule, n_layers=2, d_model=256)
    beta = (8 * 2) ** -0.25
    for name, gain in (("q_proj", 1.0), ("k_proj", 1.0), ("v_proj", beta), ("o_proj", beta)):
        weight = block_of(model, 0).attn.get_submodule(name).weight
        assert weight.std().item() == pytest.approx(gain * math.sqrt(2 / 512), rel=0.02)
    up = block_of(model, 0).mlp.up_proj.weight
    assert up.std().item() == pytest.approx(beta * math.sqrt(2 / (256 * 5)), rel=0.02)


def test_rezero_starts_as_the_identity_and_shares_alpha():
    model = native(rule=ReZero())
    _, cache = model.run_with_cache(some_tokens())
    assert torch.equal(cache["blocks.2.hook_resid_post"], cache["hook_embed"])
    assert not any("ln" in name for name, _ in model.named_parameters())
    alphas = [name for name, _ in model.named_parameters() if "alpha" in name]
    assert alphas == [f"blocks.{layer}.scales.block.alpha" for layer in range(3)]
    model(some_tokens()).sum().backward()
    block = block_of(model, 1)
    assert block.attn.o_proj.weight.grad.abs().max() == 0 < block.scales["block"].alpha.grad.abs()


def test_rezero_with_norm_has_an_alpha_per_write():
    model = native(rule=ReZeroNorm())
    names = [name for name, _ in model.named_parameters() if "alpha" in name]
    assert len(names) == 6
    assert block_of(model, 0).ln1 is not None


def test_layer_scale_of_ones_is_plain():
    plain, scaled = native(rule=Plain()), native(rule=LayerScale(init=1.0))
    scaled.load_state_dict(plain.state_dict(), strict=False)
    assert torch.equal(plain(some_tokens()), scaled(some_tokens()))
    halved = native(rule=LayerScale(init=0.5))
    halved.load_state_dict(plain.state_dict(), strict=False)
    assert not torch.allclose(plain(some_tokens()), halved(some_tokens()), atol=1e-4)


@pytest.mark.parametrize("changes", [{}, {"n_kv_heads": 2}, {"positions": LearnedPositions()}])
def test_a_causal_model_does_not_see_the_future(changes):
    tokens = some_tokens()
    changed = tokens.clone()
    changed[:, 4] = (changed[:, 4] + 1) % 50
    causal = filled(native(**changes))
    both = filled(native(causal=False, **changes))
    assert torch.equal(causal(tokens)[:, :4], causal(changed)[:, :4])
    assert not torch.allclose(causal(tokens)[:, 4:], causal(changed)[:, 4:])
    assert not torch.allclose(both(tokens)[:, :4], both(changed)[:, :4])


def test_rotary_positions_are_relative():
    model = filled(native())
    tokens = some_tokens()
    near = model(tokens, positions=torch.arange(7)[None])
    far = model(tokens, positions=torch.arange(100, 107)[None])
    torch.testing.assert_close(near, far, rtol=1e-3, atol=1e-3)
    order = torch.tensor([[0, 2, 1, 3, 4, 5, 6]])
    assert not torch.allclose(near, model(tokens, positions=order), atol=1e-2)


def test_without_positions_a_bidirectional_model_is_a_set_function():
    model = filled(native(causal=False, positions=NoPositions()))
    tokens, order = some_tokens(), torch.tensor([3, 0, 6, 2, 1, 5, 4])
    torch.testing.assert_close(model(tokens)[:, order], model(tokens[:, order]))


@pytest.mark.parametrize("mlp", ["gelu", "gelu_tanh", "swiglu"])
def test_mlp_kinds(mlp):
    model = filled(native(mlp=mlp))
    read = torch.randn(2, 3, 32)
    block = block_of(model, 0).mlp
    up, down = block.up_proj.weight, block.down_proj.weight
    if mlp == "swiglu":
        hidden = torch.nn.functional.silu(read @ block.gate_proj.weight.T) * (read @ up.T)
    else:
        kind = "tanh" if mlp == "gelu_tanh" else "none"
        hidden = torch.nn.functional.gelu(read @ up.T, approximate=kind)
    torch.testing.assert_close(block(read), hidden @ down.T)


def test_stream_is_float32_under_bfloat16_and_gates_keep_their_bits():
    model = native(rule=LayerScale(init=0.1)).to(torch.bfloat16)
    _, cache = model.run_with_cache(some_tokens())
    assert cache["blocks.2.hook_resid_post"].dtype == torch.float32
    assert cache["blocks.2.hook_mlp_branch"].dtype == torch.bfloat16
    gamma = block_of(model, 0).scales["attn"].gamma
    assert gamma.dtype == torch.float32
    assert torch.equal(gamma, torch.full((32,), 0.1))
    assert block_of(model.double(), 0).scales["attn"].gamma.dtype == torch.float64
    damaged = native(stream_dtype="compute").to(torch.bfloat16)
    _, cache = damaged.run_with_cache(some_tokens())
    assert cache["blocks.2.hook_resid_post"].dtype == torch.bfloat16


def test_autocast_leaves_the_stream_in_float32():
    model = native()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, cache = model.run_with_cache(some_tokens())
    assert cache["blocks.2.hook_resid_post"].dtype == torch.float32
    assert cache["blocks.2.hook_mlp_branch"].dtype == torch.bfloat16


def test_a_hook_edits_the_write():
    model = filled(native())
    tokens = some_tokens()
    logits = model.run_with_hooks(
        tokens, fwd_hooks=[("blocks.2.hook_mlp_out", lambda write, hook: write * 0)]
    )
    _, cache = model.run_with_cache(tokens)
    torch.testing.assert_close(logits, model.unembedded(cache["blocks.2.hook_resid_mid"]))
    assert not torch.allclose(logits, model(tokens))


def test_tied_and_untied_unembedding():
    tied, untied = native(tied=True), native(tied=False)
    assert tied.unembed.weight is tied.embed.weight
    assert untied.unembed.weight is not untied.embed.weight


def test_dropout_is_off_in_evaluation_only():
    model = native(dropout=0.5)
    tokens = some_tokens()
    assert torch.equal(model(tokens), model(tokens))
    model.train()
    assert not torch.equal(model(tokens), model(tokens))
