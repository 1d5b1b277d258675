"""Precision: what rounding to bfloat16 does to writes and streams."""

import numpy as np
import pytest
import torch

import resstream as rs
from resstream.analysis.precision import PrecisionResult, precision_drift
from resstream.errors import ConfigError, UnsupportedModelError
from tests.analysis import families


@pytest.mark.parametrize("family", ["llama", "gptj", "mamba", "granite"])
def test_streams_drift_by_the_size_of_bfloat16(family):
    model, tokens = rs.load(families.make(family)), families.tokens(3, 8)
    result = precision_drift(model, tokens)
    middle = result.quantile_ranks.index(0.5)
    drift = result.drift[:, 0, middle]
    assert ((drift > 2**-12) & (drift < 0.2)).all()
    assert np.isnan(result.write_error[0]).all()
    errors = result.write_error[1:, 0, middle]
    if family == "mamba":  # it keeps its stream in float32
        assert (errors == 0).all()
    else:
        assert ((errors > 0) & (errors < 0.5)).all()
    assert abs(result.kl_nats) < 0.1
    assert model.dtype == torch.float32


def test_a_small_write_into_a_large_stream_is_lost():
    """Writes are made 1/1000 of the stream: bfloat16 keeps 1/256."""
    module = families.make("llama")
    with torch.no_grad():
        module.get_parameter("model.layers.1.mlp.down_proj.weight").mul_(1e-4)
    result = precision_drift(rs.load(module), families.tokens(3, 8))
    middle = result.quantile_ranks.index(0.5)
    at = result.depths.index("L1 mlp")
    assert result.lost_share[at, 0, middle] > 0.8
    assert result.write_error[at, 0, middle] > 0.5
    assert result.size_ratio[at, 0, middle] > 256
    assert result.lost_share[at - 1, 0, middle] < 0.2


def test_refusals():
    from transformers import BertConfig, BertLMHeadModel

    model, tokens = rs.load(families.make("llama")), families.tokens()
    with pytest.raises(ConfigError, match="narrow must be bfloat16 or float16, got 'int8'"):
        precision_drift(model, tokens, narrow="int8")
    low = rs.load(families.make("llama").to(torch.bfloat16))
    with pytest.raises(ConfigError, match="must be wider than bfloat16"):
        precision_drift(low, tokens)
    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16, "is_decoder": True}
    config = BertConfig(**sizes, num_hidden_layers=2, num_attention_heads=2)
    with pytest.raises(UnsupportedModelError, match="Post-LN"):
        precision_drift(rs.load(BertLMHeadModel(config)), tokens % 50)


def test_round_trip():
    result = precision_drift(rs.load(families.make("opt")), families.tokens())
    again = PrecisionResult.from_json(result.to_json())
    np.testing.assert_array_equal(again.write_error, result.write_error)
    assert len(result.to_dataframe()) == 7 * 2
    assert result.plot().data
