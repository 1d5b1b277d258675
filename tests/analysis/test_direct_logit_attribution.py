"""Attribution: complete for every family and level, equal to the formula, refused elsewhere."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import resstream as rs
from resstream.analysis.direct_logit_attribution import AttributionResult, direct_logit_attribution
from resstream.errors import ConfigError, TextError, UnsupportedModelError
from resstream.stream.linear_parts import freeze_norm
from tests.analysis import families

ADDITIVE = sorted(families.MAKERS)


@pytest.mark.parametrize("family", ADDITIVE)
def test_parts_sum_to_the_logit_difference(family):
    model, tokens = rs.load(families.make(family)), families.tokens(3, 6)
    with torch.no_grad():
        own = model.module(tokens).logits[:, -1].double().numpy()
    rows = np.arange(3)
    expected = own[rows, [5, 6, 7]] - own[rows, [8, 9, 10]]
    for level in ("write", "head", "neuron"):
        result = direct_logit_attribution(
            model, tokens, answer=[5, 6, 7], wrong=[8, 9, 10], level=level, top_k=4
        )
        if family in ("gemma2", "gemma3"):  # they bend their logits
            assert "soft-cap" in result.warnings[0]
        else:
            np.testing.assert_allclose(result.explained, expected, rtol=1e-12)
        assert result.completeness_error.max() < 2e-5
        assert result.contributions.shape == (3, len(result.parts))


def test_equals_the_formula():
    module, tokens = families.make("llama"), families.tokens(2, 6)
    model = rs.load(module)
    result = direct_logit_attribution(model, tokens, answer=5, wrong=8)
    with torch.no_grad():
        states = module.model(tokens, output_hidden_states=True).hidden_states
        kept = {}
        attention = module.model.layers[1].self_attn
        attention.register_forward_hook(lambda m, a, out: kept.update(write=out[0]))
        last = {}
        module.model.norm.register_forward_pre_hook(lambda m, args: last.update(x=args[0]))
        module(tokens)
        sigma = (last["x"][:, -1].square().mean(-1) + module.config.rms_norm_eps).sqrt()
        direction = module.model.norm.weight * (module.lm_head.weight[5] - module.lm_head.weight[8])
        write = kept["write"][:, -1] @ direction / sigma
        embed = states[0][:, -1] @ direction / sigma
    at = result.parts.index("L1 attn")
    np.testing.assert_allclose(result.contributions[:, at], write.numpy(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(result.contributions[:, 0], embed.numpy(), rtol=1e-4, atol=1e-6)


def test_heads_sum_to_their_write():
    model, tokens = rs.load(families.make("gpt2")), families.tokens(2, 6)
    whole = direct_logit_attribution(model, tokens, answer=5)
    heads = direct_logit_attribution(model, tokens, answer=5, level="head")
    of_layer = (heads.layers == 1) & (np.array(heads.kinds) != "mlp")
    assert of_layer.sum() == 5  # four heads and the bias
    expected = whole.contributions[:, whole.parts.index("L1 attn")]
    np.testing.assert_allclose(heads.contributions[:, of_layer].sum(1), expected, rtol=1e-4)


def test_a_silent_head_gets_nothing_and_a_silent_write_too():
    model, tokens = rs.load(families.make("llama")), families.tokens(2, 6)
    with torch.no_grad():
        model.module.get_parameter("model.layers.2.self_attn.o_proj.weight")[:, 8:16] = 0
        model.module.get_parameter("model.layers.0.mlp.down_proj.weight").zero_()
    heads = direct_logit_attribution(model, tokens, answer=5, level="head")
    silent = [heads.parts.index("L2 head 1"), heads.parts.index("L0 mlp")]
    assert np.count_nonzero(heads.contributions[:, silent]) == 0
    assert np.count_nonzero(heads.contributions[:, heads.parts.index("L2 head 0")]) == 2


def test_only_the_largest_neurons_are_named():
    model, tokens = rs.load(families.make("llama")), families.tokens(2, 6)
    few = direct_logit_attribution(model, tokens, answer=5, level="neuron", top_k=3)
    every = direct_logit_attribution(model, tokens, answer=5, level="neuron", top_k=10_000)
    assert few.kinds.count("neuron") == 3
    assert every.kinds.count("neuron") == 3 * 48
    np.testing.assert_allclose(few.contributions.sum(1), every.contributions.sum(1), rtol=1e-9)
    sizes = np.abs(every.contributions).mean(0)[np.array(every.kinds) == "neuron"]
    named = np.abs(few.contributions).mean(0)[np.array(few.kinds) == "neuron"]
    np.testing.assert_allclose(np.sort(named), np.sort(sizes)[-3:])


def test_any_direction_can_be_explained():
    model, tokens = rs.load(families.make("opt")), families.tokens(2, 6)
    weight = model.module.get_parameter(f"{model.spec.readout.head}.weight").detach()
    by_token = direct_logit_attribution(model, tokens, answer=5)
    along = direct_logit_attribution(model, tokens, direction=weight[5])
    np.testing.assert_allclose(along.contributions, by_token.contributions, rtol=1e-6, atol=1e-9)


def test_without_an_answer_the_first_choice_is_explained():
    model, tokens = rs.load(families.make("gpt2")), families.tokens(2, 6)
    result = direct_logit_attribution(model, tokens)
    with torch.no_grad():
        best = model.forward(tokens)[:, -1].max(-1)
    assert result.question == tuple(repr(str(index)) for index in best.indices.tolist())
    np.testing.assert_allclose(result.explained, best.values.numpy(), rtol=1e-6)


def test_erased_writes_are_warned_of():
    """The last MLP is made to take away what the attention before it writes."""
    module, tokens = families.make("llama"), families.tokens(1, 6)
    model = rs.load(module)
    kept = {}

    def take_back(value):
        return -0.9 * kept["write"]

    def enlarge(value):
        kept["write"] = 30 * value
        return kept["write"]

    with model.hooked({"blocks.2.attn_out": enlarge, "blocks.2.mlp_out": take_back}):
        result = direct_logit_attribution(model, tokens, answer=5, wrong=9)
    at = result.parts.index("L2 attn")
    assert result.erased[0, at] == pytest.approx(0.9, abs=1e-4)
    assert any("L2 attn: later writes take away 90%" in text for text in result.warnings)


def test_refusals():
    from transformers import BertConfig, BertLMHeadModel

    model, tokens = rs.load(families.make("gpt2")), families.tokens(2, 6)
    with pytest.raises(ConfigError, match="level must be one of write, head, neuron, got 'layer'"):
        direct_logit_attribution(model, tokens, level="layer")
    with pytest.raises(ConfigError, match=r"either tokens \(answer, wrong\) or a direction"):
        direct_logit_attribution(model, tokens, answer=3, direction=torch.ones(32))
    with pytest.raises(TextError, match="one target a prompt is needed, got 3 for 2 prompts"):
        direct_logit_attribution(model, tokens, answer=[3, 4, 5])
    with pytest.raises(TextError, match=r"position must be in 0\.\.5, got 6"):
        direct_logit_attribution(model, tokens, position=6)
    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16, "is_decoder": True}
    config = BertConfig(**sizes, num_hidden_layers=2, num_attention_heads=2)
    post = rs.load(BertLMHeadModel(config).eval())
    with pytest.raises(UnsupportedModelError, match="a stream that is the sum of its writes"):
        direct_logit_attribution(post, tokens % 50)


def test_round_trip(tmp_path):
    model, tokens = rs.load(families.make("gpt2")), families.tokens(2, 6)
    result = direct_logit_attribution(model, tokens, answer=5, level="head")
    again = AttributionResult.from_json(result.to_json())
    np.testing.assert_array_equal(again.erased, result.erased)
    np.testing.assert_array_equal(again.contributions, result.contributions)
    assert (again.parts, again.question) == (result.parts, result.question)
    assert len(result.to_dataframe()) == 2 * len(result.parts)
    assert (result.save(tmp_path / "run") / "result.json").exists()
    assert result.plot().data


@settings(deadline=None, max_examples=40)
@given(
    width=st.integers(2, 40),
    kind=st.sampled_from([nn.LayerNorm, nn.RMSNorm]),
    size=st.floats(1e-2, 1e3),
    seed=st.integers(0, 99),
)
def test_a_frozen_norm_is_the_norm_and_linear(width, kind, size, seed):
    torch.manual_seed(seed)
    norm = kind(width, dtype=torch.float64)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.normal_()
    stream = size * torch.randn(2, 3, width, dtype=torch.float64)
    frozen = freeze_norm(norm, stream, what="the norm")
    torch.testing.assert_close(frozen(stream), norm(stream).detach(), rtol=1e-6, atol=1e-6)
    part = torch.randn_like(stream)
    direction = torch.randn_like(stream)
    through = ((frozen(part) - frozen.bias) * direction).sum(-1)
    torch.testing.assert_close((part * frozen.pull(direction)).sum(-1), through)


def test_what_is_no_norm_is_refused():
    with pytest.raises(UnsupportedModelError, match="the thing is not a norm that can be held"):
        freeze_norm(nn.Linear(8, 8).double(), torch.randn(2, 3, 8).double(), what="the thing")


def test_complete_on_the_43_pairs_of_the_real_model(smollm2_path, data_path):
    pairs = json.loads(data_path("prompts/smollm2_demo_pairs.json").read_text())["prompts"]
    assert len(pairs) == 43
    result = direct_logit_attribution(
        rs.load(smollm2_path("smollm2")),
        [pair["clean"] for pair in pairs],
        answer=[pair["answer"] for pair in pairs],
        wrong=[pair["wrong"] for pair in pairs],
    )
    assert result.completeness_error.max() < 2e-5
    known = [pair["ld_clean"] for pair in pairs]
    np.testing.assert_allclose(result.explained, known, atol=2e-3)
