"""Activations of many passes are computed by one kernel while a sweep runs, and only then."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import resstream as rs
from resstream.sweep.activations import fast_activations, slow_activations
from resstream.sweep.reference import base_values, run_by_hooks
from resstream.sweep.variants import Change, Edit, Variant
from tests.sweep.families import LENGTH, make, tokens

SLOW = ("gelu_new", "gelu_fast", "gelu_accurate")


def activation(name: str) -> nn.Module:
    from transformers.activations import ACT2FN

    return ACT2FN[name]


def values() -> torch.Tensor:
    return torch.linspace(-12, 12, 4001)


@pytest.mark.parametrize("name", [*SLOW, "bloom"])
def test_the_kernel_is_the_activation_to_rounding(name: str) -> None:
    from transformers.models.bloom.modeling_bloom import BloomGelu

    module = nn.Sequential(BloomGelu() if name == "bloom" else activation(name)).eval()
    with torch.no_grad():
        exact = copy.deepcopy(module).double()(values().double())
        own = module(values())
        with fast_activations(module):
            fused = module(values())
    assert not torch.equal(fused, own)  # or else nothing was swapped
    assert float((fused - exact).abs().max()) < 2e-6
    assert float((fused - own).abs().max()) < 3e-6


def test_only_exact_classes_are_swapped() -> None:
    class Louder(type(activation("gelu_new"))):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(input)

    others = [activation(name) for name in ("gelu", "silu", "relu2", "quick_gelu", "laplace")]
    assert not slow_activations(nn.Sequential(Louder(), *others))
    assert len(slow_activations(make("gpt2").module)) == 3
    assert len(slow_activations(make("bloom").module)) == 3
    assert not slow_activations(make("llama").module)


@pytest.mark.parametrize("name", SLOW)
def test_other_precisions_and_gradients_keep_the_own_forward(name: str) -> None:
    module = activation(name)
    with torch.no_grad(), fast_activations(module):
        inside = [module(values().to(dtype)) for dtype in (torch.float64, torch.bfloat16)]
    with fast_activations(module):
        inside.append(module(values()))
    kinds = (torch.float64, torch.bfloat16, torch.float32)
    outside = [module(values().to(dtype)) for dtype in kinds]
    assert all(map(torch.equal, inside, outside))


def test_it_is_put_back_also_after_an_error_and_nested() -> None:
    module = nn.Sequential(activation("gelu_new"))
    with torch.no_grad():
        own = module(values())
        with pytest.raises(KeyboardInterrupt), fast_activations(module):
            with fast_activations(module):
                pass
            assert not torch.equal(module(values()), own)  # the inner one ends, the outer goes on
            raise KeyboardInterrupt
        assert torch.equal(module(values()), own)
    assert "forward" not in vars(module[0])


def test_what_somebody_else_put_there_stays() -> None:
    module = activation("gelu_new")
    vars(module)["forward"] = torch.zeros_like
    with torch.no_grad(), fast_activations(module):
        assert not module(values()).any()
    assert not module(values()).any()


def pair() -> dict[str, Any]:
    row = tokens(1)[0].tolist()
    return {"clean": row, "corrupted": [*row[:3], 5, *row[4:]], "answer": 7, "wrong": 9}


@pytest.mark.parametrize("family", ["gpt2", "bloom"])
@pytest.mark.parametrize("site", ["resid_pre", "attn_out", "mlp_out"])
def test_patching_equals_plain_hooks_on_the_own_activation(family: str, site: str) -> None:
    model, one = make(family), pair()
    clean, corrupted = (torch.tensor([one[name]]) for name in ("clean", "corrupted"))
    result = rs.patch(model, one, site=site, skip_unchanged=False)
    names = [f"blocks.{layer}.hook_{site}" for layer in range(3)]
    source = base_values(model, clean, names)
    for layer, name in enumerate(names):
        for position in range(LENGTH):
            variant = Variant("cell", (Edit(name, putting(source[name], position)),))
            logits = run_by_hooks(model, corrupted, variant)[0, -1]
            wanted = float(logits[7] - logits[9])
            found = result.corrupted + float(result.effects[layer, position])
            assert abs(found - wanted) <= 1e-5 * float(logits.abs().max()), (layer, position)


def putting(source: torch.Tensor, position: int) -> Change:
    def put(value: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
        del base
        changed = value.clone()
        changed[:, position] = source[:, position]
        return changed

    return put


def test_clean_into_clean_is_nothing() -> None:
    same = pair() | {"corrupted": pair()["clean"]}
    result = rs.patch(make("gpt2"), same, skip_unchanged=False)
    assert result.computed == 3 * LENGTH
    assert abs(result.effects).max() < 1e-6


def test_results_say_so() -> None:
    fused = "NewGELUActivation as one kernel"
    assert fused in rs.patch(make("gpt2"), pair()).how
    assert "kernel" not in rs.patch(make("llama"), pair()).how
    assert "kernel" not in rs.patch(make("gpt2", torch.float64), pair()).how


@pytest.mark.parametrize("family", ["gpt2", "bloom"])
def test_sweeps_use_it_for_base_and_variants_alike(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPT-2 by suffixes, Bloom by whole sequences; outside of the sweep nothing is changed."""
    model = make(family)
    kernels: list[int] = []
    kernel = nn.functional.gelu

    def counting(value: torch.Tensor, approximate: str = "none") -> torch.Tensor:
        kernels.append(value.numel())
        return kernel(value, approximate=approximate)

    monkeypatch.setattr(nn.functional, "gelu", counting)
    own = model.forward(tokens(1))
    assert not kernels
    rs.patch(model, pair(), site="mlp_out", skip_unchanged=False)
    patching = len(kernels)
    rs.ablate(model, tokens(1))
    assert 0 < patching < len(kernels)
    before = len(kernels)
    assert torch.equal(model.forward(tokens(1)), own)
    assert len(kernels) == before
