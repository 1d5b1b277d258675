"""Are constants and initialisations those of the papers?"""

import math
from typing import Any, get_args

import pytest
import torch

from resstream.errors import ConfigError
from resstream.nn.config import TransformerConfig
from resstream.nn.constants import (
    deepnorm_constants,
    fixup_gain,
    layer_scale_start,
    sub_ln_gain,
    tfixup_gain,
)
from resstream.nn.initialisation import INITIALISATIONS, Depth, MatrixRole
from resstream.nn.rules import DeepNorm, Fixup, SubLN, TFixup
from resstream.nn.transformer import ResidualTransformer

SIZES: dict[str, Any] = {"n_layers": 4, "d_model": 128, "n_heads": 4, "d_vocab": 300, "n_ctx": 16}

DEEPNORM = [
    # Encoder-only and decoder-only: alpha = (2 N)^(1/4), beta = (8 N)^(-1/4).
    ("encoder_only", 12, None, 2.21336, 0.31947),
    ("decoder_only", None, 24, 2.63215, 0.26864),
    ("decoder_only", None, 1000, 6.68740, 0.10574),
    # Encoder-decoder: the usual 6 - 6 and 100 - 100.
    ("encoder", 6, 6, 1.41792, 0.49700),
    ("encoder", 100, 100, 3.41566, 0.20631),
    ("decoder", 6, 6, 2.05977, 0.34329),
    ("decoder", 100, 100, 4.16179, 0.16990),
]


@pytest.mark.parametrize(("stack", "n", "m", "alpha", "beta"), DEEPNORM)
def test_deepnorm(stack, n, m, alpha, beta):
    got = deepnorm_constants(stack, n_encoder=n, n_decoder=m)
    assert got == pytest.approx((alpha, beta), abs=2e-4)


def test_deepnorm_encoder_gain_is_below_one_where_torchscale_has_its_inverse():
    _, beta = deepnorm_constants("encoder", n_encoder=1, n_decoder=1)
    assert beta == 0.87
    assert beta == pytest.approx(1 / 1.15, abs=1e-3)


def test_missing_constants_are_refused():
    with pytest.raises(ConfigError, match=r"n_decoder must be given .*'encoder', got None"):
        deepnorm_constants("encoder", n_encoder=6)
    with pytest.raises(ConfigError, match=r"n_encoder must be given .*'encoder_only', got None"):
        sub_ln_gain("encoder_only", n_decoder=6)
    with pytest.raises(ConfigError, match=r"n_decoder must be a whole number .*, got -6"):
        deepnorm_constants("decoder_only", n_decoder=-6)
    wrong: Any = "both"
    with pytest.raises(ConfigError, match=r"stack must be one of 'encoder_only', .*, got 'both'"):
        deepnorm_constants(wrong, n_decoder=6)


def test_sub_ln():
    assert sub_ln_gain("encoder_only", n_encoder=12) == pytest.approx(1.78271, abs=1e-5)
    assert sub_ln_gain("decoder_only", n_decoder=24) == pytest.approx(1.96753, abs=1e-5)
    gain = sub_ln_gain("encoder", n_encoder=6, n_decoder=6)
    assert gain == pytest.approx(math.sqrt(math.log(18) * math.log(12) / 3))
    assert sub_ln_gain("decoder", n_decoder=6) == pytest.approx(1.70011, abs=1e-4)


def test_tfixup():
    assert tfixup_gain("encoder", 6) == pytest.approx(0.42809, abs=1e-4)
    assert tfixup_gain("decoder", 6) == pytest.approx(0.36889, abs=1e-4)


def test_fixup_falls_with_the_number_of_branches():
    assert fixup_gain(100, 2) == pytest.approx(0.1)
    assert fixup_gain(16, 3) == pytest.approx(0.5)


def test_layer_scale_of_cait():
    assert [layer_scale_start(n) for n in (12, 18, 24, 36)] == [0.1, 0.1, 1e-5, 1e-6]


def drawn(**changes: Any) -> ResidualTransformer:
    torch.manual_seed(0)
    return ResidualTransformer(TransformerConfig(**(SIZES | changes)))


def spread(model: ResidualTransformer, path: str) -> float:
    return model.get_parameter(path + ".weight").std().item()


XAVIER, WIDE = math.sqrt(2 / 256), math.sqrt(2 / (128 * 5))
"""Xavier's deviation of a square matrix of 128, and of the MLP's."""


@pytest.mark.parametrize("init", ["deepnorm", None])
def test_deepnorm_is_drawn_as_in_its_figure(init):
    """By the rule, and by the initialisation under another rule; never twice."""
    model = drawn(rule=DeepNorm()) if init is None else drawn(init=init)
    beta = 32**-0.25
    got = [spread(model, f"blocks.1.attn.{name}_proj") / XAVIER for name in "qkvo"]
    assert got == pytest.approx([1, 1, beta, beta], rel=0.03)
    assert spread(model, "blocks.1.mlp.up_proj") == pytest.approx(beta * WIDE, rel=0.03)
    assert spread(model, "blocks.1.mlp.down_proj") == pytest.approx(beta * WIDE, rel=0.03)


def test_an_initialisation_with_gains_of_its_own_takes_none_from_the_rule():
    twice = drawn(rule=DeepNorm(), init="deepnorm")
    assert spread(twice, "blocks.1.attn.v_proj") == pytest.approx(32**-0.25 * XAVIER, rel=0.03)
    other = drawn(rule=DeepNorm(), init={"kind": "normal", "std": 0.1})
    assert spread(other, "blocks.1.attn.v_proj") == pytest.approx(32**-0.25 * 0.1, rel=0.03)


@pytest.mark.parametrize("init", ["fixup", None])
@pytest.mark.parametrize("tied", [True, False])
def test_fixup_is_drawn_with_zero_ends(init, tied):
    model = drawn(rule=Fixup(), tied=tied) if init is None else drawn(init=init, tied=tied)
    for path in ("blocks.1.attn.o_proj", "blocks.1.mlp.down_proj"):
        assert not model.get_parameter(path + ".weight").any()
    he = math.sqrt(2 / 128)
    assert spread(model, "blocks.1.mlp.up_proj") == pytest.approx(he * 8**-0.5, rel=0.03)
    assert spread(model, "blocks.1.attn.v_proj") == pytest.approx(he * 8**-0.5, rel=0.03)
    assert spread(model, "blocks.1.attn.q_proj") == pytest.approx(he, rel=0.03)
    assert spread(model, "embed") == pytest.approx(128**-0.5, rel=0.03)
    assert bool(model.unembed.weight.any()) is tied


@pytest.mark.parametrize("init", ["tfixup", None])
@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_tfixup_is_drawn_by_depth_alone(init, stack):
    rule, given = TFixup(stack=stack), {"kind": "tfixup", "stack": stack}
    model = drawn(rule=rule) if init is None else drawn(init=given)
    gain = 0.67 * 4**-0.25 if stack == "encoder" else 36**-0.25
    got = [spread(model, f"blocks.1.attn.{name}_proj") / XAVIER for name in "qkvo"]
    assert got == pytest.approx([1, 1, gain, gain], rel=0.03)
    assert spread(model, "blocks.1.mlp.up_proj") == pytest.approx(gain * WIDE, rel=0.03)
    assert spread(model, "embed") == pytest.approx(36**-0.25 * 128**-0.5, rel=0.03)


@pytest.mark.parametrize("init", ["sub_ln", None])
def test_sub_ln_is_drawn_larger(init):
    model = drawn(rule=SubLN()) if init is None else drawn(init=init)
    gamma = math.sqrt(math.log(8))
    got = [spread(model, f"blocks.1.attn.{name}_proj") / XAVIER for name in "qkvo"]
    assert got == pytest.approx([1, 1, gamma, gamma], rel=0.03)


def test_gpt2_divides_output_matrices_by_the_root_of_the_number_of_writes():
    model = drawn(init="depth_scaled_normal")
    assert spread(model, "blocks.1.attn.o_proj") == pytest.approx(0.02 / math.sqrt(8), rel=0.03)
    assert spread(model, "blocks.1.mlp.down_proj") == pytest.approx(0.02 / math.sqrt(8), rel=0.03)
    assert spread(model, "blocks.1.attn.v_proj") == pytest.approx(0.02, rel=0.03)


def test_zero_output_starts_as_the_identity():
    model = drawn(init="zero_output")
    _, cache = model.run_with_cache(torch.arange(5)[None])
    assert torch.equal(cache["hook_embed"], cache["blocks.3.hook_resid_post"])
    assert spread(model, "blocks.1.mlp.up_proj") == pytest.approx(0.02, rel=0.03)


@pytest.mark.parametrize("init", [init() for init in INITIALISATIONS], ids=lambda init: init.kind)
def test_every_initialisation_draws_every_role(init):
    depth = Depth(n_layers=4, n_writes=8)
    for role in get_args(MatrixRole):
        weight = torch.full((64, 32), torch.nan)
        init.fill_(weight, role, depth, 1.0)
        doubled = torch.full((64, 32), torch.nan)
        init.fill_(doubled, role, depth, 2.0)
        assert weight.isfinite().all()
        assert doubled.std().item() == pytest.approx(2 * weight.std().item(), rel=0.1)
