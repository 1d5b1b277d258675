"""Are bad configs refused with the key, the value and what is allowed?"""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resstream.errors import ConfigError
from resstream.nn.config import LayerNorm, Rotary, TransformerConfig
from resstream.nn.initialisation import INITIALISATIONS, DepthScaledNormal
from resstream.nn.rules import RULES, DeepNorm, LayerScale, Plain, ReZero

SIZES: dict[str, Any] = {"n_layers": 2, "d_model": 32, "n_heads": 4, "d_vocab": 50, "n_ctx": 16}

REFUSALS = [
    ({"n_layers": -3}, r"n_layers must be a whole number of at least 1, got -3"),
    ({"n_layers": True}, r"n_layers must be a whole number of at least 1, got True"),
    ({"d_model": 32.0}, r"d_model must be a whole number .* got 32.0"),
    ({"n_heads": 5}, r"n_heads must divide d_model \(32\) .*, got 5"),
    ({"n_kv_heads": 3}, r"n_kv_heads must divide n_heads \(4\), got 3"),
    ({"d_head": 7}, r"d_head must be even for rotary positions, got 7"),
    ({"mlp": "relu"}, r"mlp must be one of 'gelu', 'gelu_tanh', 'swiglu', got 'relu'"),
    ({"causal": 1}, r"causal must be one of True, False, got 1"),
    ({"dropout": 1.0}, r"dropout must be a finite number \(at least 0 and below 1\), got 1.0"),
    ({"dropout": float("nan")}, r"dropout must be a finite number .* got nan"),
    ({"rule": "residual"}, r"rule.kind must be one of .*, deepnorm, .*, got 'residual'"),
    ({"rule": {"init": 1.0}}, r"rule.kind must be one of .*, got None"),
    ({"rule": 3}, r"rule must be a kind or a mapping with a kind, got 3"),
    (
        {"rule": {"kind": "layer_scale", "eps": 1.0}},
        r"rule 'layer_scale' has unknown keys \['eps'\]; known keys of .*: init",
    ),
    ({"rule": {"kind": "plain", "a": 1}}, r"unknown keys \['a'\]; known keys of .*: none"),
    ({"rule": {"kind": "layer_scale", "init": "small"}}, r"layer_scale.init .* got 'small'"),
    ({"rule": {"kind": "deepnorm", "alpha": -1}}, r"deepnorm.alpha .*at least 0.* got -1"),
    ({"rule": "deepnorm", "placement": "pre"}, r"placement must be one of post .*'deepnorm'"),
    ({"placement": "before"}, r"placement must be one of 'pre', .*, got 'before'"),
    ({"positions": {"kind": "rotary", "base": 0.5}}, r"rotary.base .*at least 1.* got 0.5"),
    ({"layerscale": 1.0}, r"transformer config has unknown keys \['layerscale'\]; known keys"),
    ({"init": {"kind": "normal", "std": -1.0}}, r"normal.std .* got -1.0"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSALS)
def test_refusals(changes, message):
    with pytest.raises(ConfigError, match=message):
        TransformerConfig.from_dict(SIZES | changes)


def test_missing_keys_are_named():
    with pytest.raises(ConfigError, match=r"lacks \['n_heads', 'd_vocab', 'n_ctx'\]"):
        TransformerConfig.from_dict({"n_layers": 2, "d_model": 32})


def test_round_trip():
    config = TransformerConfig(
        **SIZES,
        rule=LayerScale(init=0.1),
        placement="sandwich",
        norm=LayerNorm(eps=1e-3),
        positions=Rotary(base=500.0),
        init=DepthScaledNormal(std=0.01),
    )
    assert TransformerConfig.from_dict(config.to_dict()) == config
    assert config.to_dict()["rule"] == {"kind": "layer_scale", "init": 0.1}


@given(
    rule=st.sampled_from(RULES),
    init=st.sampled_from((None, *INITIALISATIONS)),
    data=st.data(),
    causal=st.booleans(),
    stream_dtype=st.sampled_from(["float32", "compute"]),
)
def test_every_config_survives_json(rule, init, data, causal, stream_dtype):
    placement = data.draw(st.sampled_from((None, *rule.placements)))
    config = TransformerConfig(
        **SIZES,
        rule=rule(),
        placement=placement,
        init=None if init is None else init(),
        causal=causal,
        stream_dtype=stream_dtype,
    )
    assert TransformerConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    named = TransformerConfig.from_dict(SIZES | {"rule": rule.kind, "placement": placement})
    assert named.rule == config.rule and named.norm_placement == config.norm_placement


def test_defaults_follow_the_rule():
    shapes = {rule.kind: TransformerConfig(**SIZES, rule=rule) for rule in (Plain(), ReZero())}
    assert (shapes["plain"].norm_placement, shapes["plain"].has_final_norm) == ("pre", True)
    assert (shapes["rezero"].norm_placement, shapes["rezero"].has_final_norm) == ("none", False)
    assert TransformerConfig(**SIZES, rule=DeepNorm()).initialisation.kind == "xavier"
    assert TransformerConfig(**SIZES).head_width == 8
