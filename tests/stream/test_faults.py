"""Faults do what they say, where they say, and nothing else."""

from typing import Any

import pytest
import torch

from resstream.errors import ConfigError, UnsupportedModelError
from resstream.stream.faults import FAULTS, inject
from resstream.stream.model import StreamModel

DOWN = "model.layers.2.mlp.down_proj.weight"


@pytest.fixture
def model(tiny_llama: Any) -> StreamModel:
    return StreamModel(tiny_llama(num_key_value_heads=4), name="tiny")


def changed(model: StreamModel, *args: Any, **options: Any) -> dict[str, tuple[Any, Any]]:
    """Names of the weights that a fault changes, with values before and after."""
    before = {name: value.clone() for name, value in model.module.state_dict().items()}
    inject(model, *args, **options)
    after = model.module.state_dict()
    return {
        name: (value, after[name])
        for name, value in before.items()
        if not torch.equal(value, after[name])
    }


@pytest.mark.parametrize(
    ("fault", "severity", "expected"),
    [
        ("zero", None, lambda w: w * 0),
        ("scale", 3.0, lambda w: w * 3),
        ("sign_flip", None, lambda w: -w),
    ],
)
def test_simple_faults(model: StreamModel, fault: str, severity: Any, expected: Any) -> None:
    weights = changed(model, fault, layer=2, write="mlp", severity=severity)
    assert list(weights) == [DOWN]
    assert torch.equal(weights[DOWN][1], expected(weights[DOWN][0]))


def test_attention_is_found_too(model: StreamModel) -> None:
    weights = changed(model, "zero", layer=1, write="attn")
    assert list(weights) == ["model.layers.1.self_attn.o_proj.weight"]


def test_gain_scale(model: StreamModel) -> None:
    weights = changed(model, "gain_scale", layer=2, write="mlp", severity=0.5)
    name = "model.layers.2.post_attention_layernorm.weight"
    assert list(weights) == [name]
    assert torch.equal(weights[name][1], 0.5 * weights[name][0])


def test_gain_scale_of_a_norm_that_keeps_gain_less_one() -> None:
    from tests.stream.test_families import make

    gemma = make("gemma")
    weights = changed(gemma, "gain_scale", layer=1, write="attn", severity=0.25)
    ((before, after),) = weights.values()
    torch.testing.assert_close(1 + after, 0.25 * (1 + before))


def test_reinit_and_noise_keep_the_size(model: StreamModel) -> None:
    before, after = changed(model, "reinit", layer=2, write="mlp")[DOWN]
    assert after.std() == pytest.approx(before.std().item(), rel=0.1)
    assert abs(torch.corrcoef(torch.stack([before.flatten(), after.flatten()]))[0, 1]) < 0.1
    before, after = changed(model, "noise", layer=2, write="mlp", severity=0.1)[DOWN]
    assert (after - before).std() == pytest.approx(0.1 * before.std().item(), rel=0.1)


def test_channel_spike_is_one_row_drawn_from_the_seed(model: StreamModel) -> None:
    before, after = changed(model, "channel_spike", layer=2, write="mlp", severity=50.0, seed=3)[
        DOWN
    ]
    rows = (before != after).any(1).nonzero().flatten().tolist()
    assert len(rows) == 1
    assert torch.equal(after[rows[0]], 50 * before[rows[0]])


def test_quantize(model: StreamModel) -> None:
    _, after = changed(model, "quantize", layer=2, write="mlp", severity=3)[DOWN]
    assert max(len(row.unique()) for row in after) <= 7


def test_bit_flip_is_one_bit_of_one_weight(model: StreamModel) -> None:
    before, after = changed(model, "bit_flip", layer=2, write="mlp", severity=30)[DOWN]
    flipped = before.view(torch.int32) ^ after.view(torch.int32)
    assert flipped.count_nonzero() == 1
    assert flipped.abs().max().item() == 1 << 30


def test_permute_heads_keeps_all_columns(model: StreamModel) -> None:
    weights = changed(model, "permute_heads", layer=2, write="attn")
    ((before, after),) = weights.values()
    heads = [part.sum().item() for part in before.split(16, dim=1)]
    assert sorted(heads) == pytest.approx(sorted(p.sum().item() for p in after.split(16, dim=1)))


def test_uniform_attention(model: StreamModel) -> None:
    weights = changed(model, "uniform_attention", layer=2, write="attn")
    assert list(weights) == ["model.layers.2.self_attn.q_proj.weight"]


def test_swap_and_duplicate(model: StreamModel) -> None:
    before = {name: value.clone() for name, value in model.module.state_dict().items()}
    inject(model, "swap", layer=1, severity=2)
    after = model.module.state_dict()
    assert torch.equal(after[DOWN.replace(".2.", ".1.")], before[DOWN.replace(".2.", ".3.")])
    assert torch.equal(after[DOWN.replace(".2.", ".3.")], before[DOWN.replace(".2.", ".1.")])
    inject(model, "duplicate", layer=4)
    after = model.module.state_dict()
    assert torch.equal(after[DOWN.replace(".2.", ".5.")], after[DOWN.replace(".2.", ".4.")])


def test_rank_one(model: StreamModel) -> None:
    _, after = changed(model, "rank_one", layer=2, write="mlp")[DOWN]
    sizes = torch.linalg.svdvals(after)
    assert sizes[1] < 1e-4 * sizes[0]


def test_nan(model: StreamModel) -> None:
    _, after = changed(model, "nan", layer=2, write="mlp")[DOWN]
    assert after.isnan().sum() == 1


def test_rope_base_changes_the_output(model: StreamModel) -> None:
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        before = model.forward(tokens)
        inject(model, "rope_base", layer=0, severity=100.0)
        assert not torch.equal(model.forward(tokens), before)
    config: Any = model.module.config
    assert config.rope_parameters["rope_theta"] == 100.0


def test_stale(model: StreamModel, tiny_llama: Any) -> None:
    other = StreamModel(tiny_llama(seed=9, num_key_value_heads=4), name="old")
    inject(model, "stale", layer=2, other=other)
    assert torch.equal(model.module.get_parameter(DOWN), other.module.get_parameter(DOWN))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fault": "melt", "layer": 0}, "unknown fault 'melt'; there are zero, scale"),
        ({"fault": "zero", "layer": 9, "write": "mlp"}, r"layer must be in 0..5, got 9"),
        ({"fault": "zero", "layer": 0, "write": "conv"}, "write must be one of attn, mlp"),
        ({"fault": "zero", "layer": 0}, "write must be one of attn, mlp"),
        ({"fault": "scale", "layer": 0, "write": "mlp"}, "needs a severity"),
        ({"fault": "quantize", "layer": 0, "write": "mlp", "severity": 2.5}, "whole number"),
        ({"fault": "duplicate", "layer": 5}, r"layer must be in 0..5, got 6"),
        ({"fault": "stale", "layer": 0}, "needs another checkpoint"),
    ],
)
def test_bad_faults(model: StreamModel, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        inject(model, **options)


def test_experts_have_no_single_output_matrix() -> None:
    from tests.stream.test_families import make

    with pytest.raises(UnsupportedModelError, match="L1 mlp has no single output matrix"):
        inject(make("mixtral"), "zero", layer=1, write="mlp")


def test_every_fault_of_the_contract_is_there() -> None:
    assert set(FAULTS) == {
        "zero", "scale", "gain_scale", "reinit", "noise", "sign_flip", "channel_spike", "quantize",
        "bit_flip", "permute_heads", "uniform_attention", "swap", "duplicate", "rank_one", "nan",
        "rope_base", "stale",
    }  # fmt: skip
