"""Gradients: equal to plain backpropagation, and the model is left as it was."""

import numpy as np
import pytest
import torch
from torch.nn import functional

import resstream as rs
from resstream.analysis.gradients import GradientResult, gradients
from tests.analysis import families


@pytest.mark.parametrize("family", ["llama", "gptj", "mamba"])
def test_equals_plain_backpropagation(family):
    module, tokens = families.make(family), families.tokens(3, 8)
    result = gradients(rs.load(module), tokens)
    assert all(parameter.grad is None for parameter in module.parameters())
    logits = module(tokens).logits
    loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    assert result.loss_nats == pytest.approx(float(loss.detach()), rel=1e-5)
    blocks = rs.load(module).spec.blocks
    for layer, block in enumerate(blocks):
        parts = module.get_submodule(block.module).parameters()
        squares = sum(float(p.grad.square().sum()) for p in parts if p.grad is not None)
        assert result.weights[layer] == pytest.approx(np.sqrt(squares), rel=1e-4)


def test_stream_gradient_is_that_of_a_nudge():
    """At the last depth: the pull of the readout alone, by finite differences in float64."""
    model, tokens = rs.load(families.make("gpt2").double()), families.tokens(1, 6)
    result = gradients(model, tokens)
    kept = {}
    with torch.no_grad():
        model.run(tokens, {"blocks.2.resid_post": lambda value: kept.update(x=value.clone())})

        def loss(stream):
            logits = model.readout(stream)
            return functional.cross_entropy(logits[0, :-1], tokens[0, 1:], reduction="sum")

        step = 1e-5
        pull = torch.zeros(6, 32, dtype=torch.float64)
        for pos in range(6):
            for channel in range(32):
                nudge = torch.zeros_like(kept["x"])
                nudge[0, pos, channel] = step
                up, down = loss(kept["x"] + nudge), loss(kept["x"] - nudge)
                pull[pos, channel] = (up - down) / (2 * step)
    median = np.median(pull.norm(dim=-1).numpy()[1:])  # the first token is a sink
    assert result.stream[-1, 0, result.quantile_ranks.index(0.5)] == pytest.approx(median, rel=0.05)


def test_frozen_models_have_gradients_too():
    model, tokens = rs.load(families.make("llama")), families.tokens(2, 8)
    free = gradients(model, tokens)
    model.module.requires_grad_(False)
    frozen = gradients(model, tokens)
    np.testing.assert_allclose(frozen.stream, free.stream, rtol=1e-5)
    assert (frozen.weights == 0).all()


def test_round_trip():
    result = gradients(rs.load(families.make("opt")), families.tokens(2, 8))
    again = GradientResult.from_json(result.to_json())
    np.testing.assert_array_equal(again.stream, result.stream)
    table = result.to_dataframe()
    assert int(table["weights_norm"].notna().to_numpy().sum()) == 3
    assert result.plot().data
