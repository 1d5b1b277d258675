"""A write that is fused with the norm behind it gives the same model: values, gradients, hooks."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from resstream.errors import ConfigError
from resstream.nn.config import TransformerConfig
from resstream.nn.transformer import ResidualTransformer

RULES = [
    "plain",
    "rezero_norm",
    "skipinit",
    "layer_scale",
    "deepnorm",
    "weighted",
    "highway",
    "layer_norm_scaling",
    "depth_mup",
    "sub_ln",
    "none",
]
TOKENS = torch.randint(0, 40, (2, 9), generator=torch.Generator().manual_seed(0))


def make(rule: Any = "plain", **changed: Any) -> ResidualTransformer:
    torch.manual_seed(0)
    shape = {"n_layers": 3, "d_model": 16, "n_heads": 2, "d_vocab": 40, "n_ctx": 16}
    model = ResidualTransformer(TransformerConfig(**(shape | changed), rule=rule))
    with torch.no_grad():  # published starts are often 0, and would hide what is wrong
        for value in model.parameters():
            value += 0.1 * torch.randn_like(value)
    return model


def both(model: ResidualTransformer) -> tuple[ResidualTransformer, ResidualTransformer]:
    fused = copy.deepcopy(model)
    model.set_fusion("off")
    fused.set_fusion("torch")
    return model, fused


def loss_of(model: ResidualTransformer) -> Tensor:
    return torch.nn.functional.cross_entropy(model(TOKENS).flatten(0, 1), TOKENS.flatten())


@pytest.mark.parametrize("rule", RULES)
def test_values_and_gradients_are_the_same(rule: str) -> None:
    apart, fused = both(make(rule))
    one, other = loss_of(apart), loss_of(fused)
    assert torch.allclose(one, other, rtol=1e-6)
    one.backward()
    other.backward()
    for (name, left), right in zip(apart.named_parameters(), fused.parameters(), strict=True):
        assert (left.grad is None) == (right.grad is None), name
        if left.grad is not None and right.grad is not None:
            scale = float(left.grad.abs().max())
            assert torch.allclose(left.grad, right.grad, atol=2e-5 * scale + 1e-9), name


@pytest.mark.parametrize("norm", ["rms_norm", "layer_norm"])
def test_the_norm_does_not_run_again(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from resstream.nn.norms import StreamNorm

    _, fused = both(make(norm=norm))
    normed_apart: list[StreamNorm] = []
    normed = StreamNorm._normed

    def counted(self: StreamNorm, stream: Tensor) -> Tensor:
        normed_apart.append(self)
        return normed(self, stream)

    monkeypatch.setattr(StreamNorm, "_normed", counted)
    fused(TOKENS)
    assert normed_apart == [fused.blocks[0].ln1, fused.ln_final]  # nothing is written before these


def test_what_ran_is_told() -> None:
    apart, fused = both(make("layer_scale"))
    loss_of(apart)
    loss_of(fused)
    assert apart.write_plans() == {}
    plans = fused.write_plans()
    assert list(plans)[:2] == ["blocks.0.hook_attn_out", "blocks.0.hook_mlp_out"]
    assert {plan.impl for plan in plans.values()} == {"torch"}


def test_on_a_cpu_nothing_is_fused_unasked() -> None:
    model = make()
    model(TOKENS)
    assert model.write_plans() == {}


def test_unknown_fusion() -> None:
    with pytest.raises(ConfigError, match="fusion must be one of 'auto', 'off'"):
        make().set_fusion("on")  # type: ignore[arg-type]


SITES = ["resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post"]


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("way", ["replaced", "in place"])
def test_a_hook_that_edits_is_obeyed(site: str, way: str) -> None:
    def edit(value: Tensor, hook: object) -> Tensor:
        del hook
        return value + 1 if way == "replaced" else value.add_(1)

    apart, fused = both(make("layer_scale"))
    hooks: list[tuple[str, Callable[..., Any]]] = [(f"blocks.1.hook_{site}", edit)]
    with torch.no_grad():
        wanted = apart.run_with_hooks(TOKENS, fwd_hooks=hooks)
        found = fused.run_with_hooks(TOKENS, fwd_hooks=hooks)
        assert torch.allclose(found, wanted, atol=1e-5)
        assert not torch.allclose(found, fused(TOKENS), atol=1e-3)


def test_a_hook_that_reads_changes_no_bit() -> None:
    _, fused = both(make("layer_scale"))
    with torch.no_grad():
        logits, cache = fused.run_with_cache(TOKENS)
        assert torch.equal(logits, fused(TOKENS))
        written = cache["blocks.1.hook_resid_mid"] + cache["blocks.1.hook_mlp_out"]
        assert torch.allclose(written, cache["blocks.1.hook_resid_post"], atol=1e-6)


@pytest.mark.parametrize("site", SITES)
def test_gradients_of_sites_miss_no_path(site: str) -> None:
    def gradient(model: ResidualTransformer) -> Tensor:
        seen: list[Tensor] = []
        hook = (f"blocks.1.hook_{site}", lambda value, hook: seen.append(value))
        loss = model.run_with_hooks(TOKENS, fwd_hooks=[hook]).square().mean()
        return torch.autograd.grad(loss, seen[0])[0]

    wanted, found = map(gradient, both(make()))
    assert torch.allclose(found, wanted, atol=1e-5 * float(wanted.abs().max()))


def test_blocks_run_one_by_one_hand_nothing_on() -> None:
    """Somebody may ask for the gradient of the stream between two blocks."""
    _, fused = both(make())
    stream = fused.blocks[0](torch.randn(1, 4, 16))
    behind = fused.blocks[1](stream)
    (found,) = torch.autograd.grad(behind.sum(), stream)
    apart = stream.detach().requires_grad_()
    (wanted,) = torch.autograd.grad(fused.blocks[1](apart).sum(), apart)
    assert torch.equal(found, wanted)


def test_checkpointing_recomputes_the_same() -> None:
    _, fused = both(make("layer_scale"))
    plain = copy.deepcopy(fused)
    fused.gradient_checkpointing = True
    fused.train()
    loss_of(fused).backward()
    loss_of(plain).backward()
    for left, right in zip(fused.parameters(), plain.parameters(), strict=True):
        assert left.grad is not None
        assert right.grad is not None
        assert torch.allclose(left.grad, right.grad, atol=1e-6)


def test_inference_mode() -> None:
    apart, fused = both(make())
    with torch.inference_mode():
        assert torch.allclose(fused(TOKENS), apart(TOKENS), atol=1e-5)
