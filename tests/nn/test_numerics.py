"""What is kept in float32, what does the switch give up, and does recomputing change anything?"""

from typing import Any

import pytest
import torch
from torch import Tensor

from resstream.nn.config import LayerNorm, TransformerConfig
from resstream.nn.pretrained import ResstreamConfig, ResstreamForCausalLM
from resstream.nn.rules import RULES, Highway, LayerScale, ReZero, SkipInit, Weighted
from resstream.nn.transformer import ResidualTransformer

SIZES: dict[str, Any] = {"n_layers": 3, "d_model": 32, "n_heads": 4, "d_vocab": 50, "n_ctx": 16}
HALVES = [torch.bfloat16, torch.float16]
EVERY_RULE = pytest.mark.parametrize("rule", [rule() for rule in RULES], ids=lambda rule: rule.kind)


def native(**changes: Any) -> ResidualTransformer:
    torch.manual_seed(0)
    return ResidualTransformer(TransformerConfig(**(SIZES | changes))).eval()


def blocks_of(model: ResidualTransformer) -> list[Any]:
    return list(model.get_submodule("blocks").children())


def some_tokens() -> Tensor:
    return torch.randint(0, 50, (2, 7), generator=torch.Generator().manual_seed(1))


@EVERY_RULE
@pytest.mark.parametrize("dtype", HALVES)
def test_half_models_keep_stream_and_scales_in_float32(rule, dtype):
    model = native(rule=rule).to(dtype)
    logits, cache = model.run_with_cache(some_tokens())
    assert logits.dtype == dtype and logits.isfinite().all()
    for layer in range(3):
        assert cache[f"blocks.{layer}.hook_resid_post"].dtype == torch.float32
        assert cache[f"blocks.{layer}.hook_attn_branch"].dtype == dtype
        assert cache[f"blocks.{layer}.hook_mlp_out"].dtype == torch.float32
    for name, parameter in model.named_parameters():
        assert parameter.dtype == (torch.float32 if ".scales." in name else dtype), name


@EVERY_RULE
def test_the_switch_keeps_the_stream_in_the_compute_dtype(rule):
    model = native(rule=rule, stream_dtype="compute").to(torch.bfloat16)
    _, cache = model.run_with_cache(some_tokens())
    for name, value in cache.items():
        if "resid" in name or name.endswith("_out"):
            assert value.dtype == torch.bfloat16, name


@EVERY_RULE
@pytest.mark.parametrize("dtype", HALVES)
def test_autocast_leaves_stream_and_parameters_in_float32(rule, dtype):
    model = native(rule=rule)
    with torch.autocast("cpu", dtype=dtype):
        logits, cache = model.run_with_cache(some_tokens())
    assert logits.isfinite().all()
    assert cache["blocks.2.hook_resid_post"].dtype == torch.float32
    assert cache["blocks.2.hook_mlp_branch"].dtype == dtype
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("rule", ["highway", "gate", "adaln_zero", "adapter_skip"])
def test_autocast_does_not_reach_what_multiplies_the_stream(rule):
    """A gate t and its ``1 - t`` in bfloat16 would take 1e-3 from a float32 stream every time."""
    model = native(rule=rule)
    with torch.no_grad():
        for parameter in blocks_of(model)[0].scales.parameters():
            parameter.add_(0.1)
    scale, stream = blocks_of(model)[0].scales["attn"], torch.randn(2, 7, 32)
    terms, carried = scale(stream), scale.carried(stream)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        same, also = scale(stream), scale.carried(stream)
    assert torch.equal(carried, also)
    for one, other in zip(terms, same, strict=True):
        is_tensor = isinstance(one, Tensor)
        assert torch.equal(one, other) if is_tensor else one == other


@pytest.mark.parametrize("rule", [LayerScale(init=0.1), ReZero(alpha=0.1), SkipInit(alpha=0.1)])
@pytest.mark.parametrize("move", [torch.nn.Module.bfloat16, torch.nn.Module.half])
def test_a_gate_of_a_half_model_takes_steps_smaller_than_half_a_unit(rule, move):
    """In bfloat16 a step of 1e-4 on a gate of 0.1 would round to nothing."""
    model = move(native(rule=rule))
    gate = next(blocks_of(model)[0].scales.parameters())
    optimizer = torch.optim.SGD([gate], lr=1.0)
    gate.grad = torch.full_like(gate, 1e-5)
    optimizer.step()
    torch.testing.assert_close(gate, torch.full_like(gate, 0.1 - 1e-5), rtol=0, atol=1e-7)
    assert (torch.full((), 0.1).bfloat16() - 1e-5).bfloat16() == torch.full((), 0.1).bfloat16()


def kept(stream_dtype: str) -> float:
    """Share of the stream's elements that a write of 1e-4 leaves exactly as they were."""
    rule = LayerScale(init=1e-4)
    model = native(rule=rule, stream_dtype=stream_dtype, init="xavier", embed_norm=True)
    _, cache = model.to(torch.bfloat16).run_with_cache(some_tokens())
    before, after = cache["blocks.0.hook_resid_pre"], cache["blocks.0.hook_resid_mid"]
    return float((before == after).float().mean())


def test_a_small_write_is_lost_in_a_bfloat16_stream_and_kept_in_float32():
    assert kept("compute") > 0.9
    assert kept("float32") < 0.05


def test_float64_goes_all_the_way():
    model = native(rule=Highway()).double()
    _, cache = model.run_with_cache(some_tokens())
    assert {value.dtype for value in cache.values()} == {torch.float64}


@EVERY_RULE
def test_recomputing_gives_the_same_gradients(rule):
    gradients: list[list[Tensor]] = []
    for is_recomputed in (False, True):
        model = native(rule=rule).train()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1)
        model.gradient_checkpointing = is_recomputed
        seen: list[int] = []
        blocks_of(model)[1].hook_attn_branch.register_forward_hook(
            lambda *call, seen=seen: seen.append(1)
        )
        model(some_tokens()).square().mean().backward()
        assert len(seen) == 1 + is_recomputed
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def saved_bytes(model: ResidualTransformer) -> int:
    """What autograd keeps of one forward pass for the backward one."""
    kept: dict[int, int] = {}

    def note(value: Tensor) -> Tensor:
        kept[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        return value

    with torch.autograd.graph.saved_tensors_hooks(note, lambda value: value):
        model(some_tokens())
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    return sum(size for place, size in kept.items() if place not in own)


def test_recomputing_keeps_little_more_than_one_stream_per_block():
    model = native(n_layers=12).train()
    usual = saved_bytes(model)
    model.gradient_checkpointing = True
    assert saved_bytes(model) < usual / 5


def test_transformers_switches_recomputing_on_without_reentrance():
    model = ResstreamForCausalLM(ResstreamConfig.of(TransformerConfig(**SIZES)))
    name = "activation_checkpointing_enable"  # gradient_... before transformers 5.20 or so
    getattr(model, name, model.gradient_checkpointing_enable)()
    assert model.model.gradient_checkpointing
    used: Any = model.model._gradient_checkpointing_func
    assert used.keywords == {"use_reentrant": False}
    assert ResidualTransformer(
        TransformerConfig(**SIZES)
    )._gradient_checkpointing_func.keywords == {"use_reentrant": False}  # type: ignore[attr-defined]


DEEP: dict[str, Any] = {
    "n_layers": 1000,
    "d_model": 8,
    "n_heads": 1,
    "d_vocab": 20,
    "n_ctx": 8,
    "d_mlp": 8,
    "norm": LayerNorm(),
    "tied": False,
}


def gradients_of_a_deep_model(rule: str) -> tuple[ResidualTransformer, float]:
    """A thousand blocks forward and backward; the model with its gradients, and the loss."""
    torch.manual_seed(0)
    model = ResidualTransformer(TransformerConfig(**DEEP, rule=rule))
    tokens = torch.randint(0, 20, (2, 6), generator=torch.Generator().manual_seed(1))
    loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.dtype == torch.float32
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
    return model, loss.item()


def test_a_thousand_layers_of_rezero():
    model, loss = gradients_of_a_deep_model("rezero")
    assert 2 < loss < 5
    alphas = [block.scales["block"].alpha.grad.abs().item() for block in blocks_of(model)]
    assert all(alpha > 0 for alpha in alphas)
    # The stream is the embedding throughout, so the first block learns as the last one does.
    medians = [sorted(part)[50] for part in (alphas[:100], alphas[-100:])]
    assert 0.2 < medians[0] / medians[1] < 5


def test_a_thousand_layers_of_deepnorm():
    model, loss = gradients_of_a_deep_model("deepnorm")
    assert 2 < loss < 5
    sizes = [block.mlp.down_proj.weight.grad.norm().item() for block in blocks_of(model)]
    assert min(sizes) > 1e-5
    assert 0.1 < sizes[0] / sizes[-1] < 10


def test_a_weight_below_one_on_the_skip_forgets_the_input():
    """``skip^(2L)`` of the embedding is left: 0.9^48 = 6.4e-3."""
    model = native(n_layers=24, rule=Weighted(skip=0.9), init={"kind": "normal", "std": 0.0})
    with torch.no_grad():
        torch.nn.init.normal_(model.embed.weight)
    _, cache = model.run_with_cache(some_tokens())
    left = cache["blocks.23.hook_resid_post"].norm() / cache["hook_embed"].norm()
    assert left.item() == pytest.approx(0.9**48, rel=1e-4)
