"""The lens: equal to the model at the last depth, and to TransformerLens at all others."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

import resstream as rs
from resstream.analysis.logit_lens import LogitLensResult, logit_lens, read_depths
from resstream.analysis.points import run_streams, stream_points
from resstream.analysis.readings import read_logits
from resstream.errors import ConfigError, TextError, UnsupportedModelError
from tests.analysis import families


@pytest.mark.parametrize("family", families.MAKERS)
def test_last_depth_is_the_models_output_to_the_bit(family):
    model, tokens = rs.load(families.make(family)), families.tokens()
    _require_the_last_depth(model, tokens)
    own = model.forward(tokens).detach()
    last = list(read_depths(model, tokens, stream_points(model.spec)))[-1]
    loss = functional.cross_entropy(own[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    torch.testing.assert_close(last.loss[:, :-1].mean(), loss, rtol=1e-5, atol=0)


def test_last_depth_of_the_native_model(demo):
    _require_the_last_depth(demo, demo.tokenizer(PROMPT, return_tensors="pt")["input_ids"])


@pytest.mark.data
def test_last_depth_of_the_real_model(smollm2_path):
    model = rs.load(smollm2_path("smollm2"))
    _require_the_last_depth(model, model.tokenizer(PROMPT, return_tensors="pt")["input_ids"])


PROMPT = "When Mary and John went to the store, John gave a drink to"


def _require_the_last_depth(model, tokens):
    """The lens at the last depth, the readout and the module's own logits are the same bits."""
    points = stream_points(model.spec)
    with torch.no_grad():
        own = model.module(tokens).logits
        streams, output = run_streams(model, tokens, points)
        read = model.readout(streams[-1])
    assert torch.equal(read, own)
    assert torch.equal(output, own)
    last = list(read_depths(model, tokens, points))[-1]
    assert torch.count_nonzero(last.kl) == 0
    assert torch.equal(last.best[..., 0], own.argmax(-1))


def test_points_of_parallel_and_single_writes_have_no_middle():
    for family, count in (("llama", 7), ("gptj", 4), ("mamba", 4), ("cohere", 4)):
        spec = rs.load(families.make(family)).spec
        assert len(stream_points(spec)) == count, family
        assert len(stream_points(spec, mid=False)) == 4, family
    labels = [point.label for point in stream_points(rs.load(families.make("gpt2")).spec)]
    assert labels[:4] == ["embed", "L0 attn", "L0 mlp", "L1 attn"]


WITHOUT_MIDDLE = ("gptj", "cohere", "mamba")


@pytest.mark.parametrize("family", families.MAKERS)
def test_equals_transformer_lens(family, tmp_path):
    module, tokens = families.make(family), families.tokens()
    if family != "mamba":
        module.set_attn_implementation("eager")
    bridge = families.bridge(module, tmp_path)
    _require_the_same_lens(module, bridge, tokens, mid=family not in WITHOUT_MIDDLE)


@pytest.mark.slow
@pytest.mark.data
def test_equals_transformer_lens_on_the_real_model(smollm2_path):
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import AutoModelForCausalLM

    place = str(smollm2_path("smollm2"))
    module = AutoModelForCausalLM.from_pretrained(place, attn_implementation="eager").eval()
    bridge = TransformerBridge.boot_transformers(place, hf_model=module, device="cpu")
    tokens = bridge.tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    _require_the_same_lens(module, bridge, tokens, mid=True)


def _require_the_same_lens(module, bridge, tokens, *, mid):
    from transformer_lens.tools.analysis.logit_lens import logit_lens as theirs

    model = rs.load(module)
    with torch.no_grad():
        streams, _ = run_streams(model, tokens, stream_points(model.spec, mid=mid))
        ours = torch.stack([model.readout(stream) for stream in streams])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = theirs(bridge, tokens, positions=None, incl_mid=mid)
    other = found.readout.values
    assert other.shape == ours.shape
    assert (ours - other).abs().max() <= 1e-5 * ours.abs().max()


def test_result_holds_what_was_asked():
    model, tokens = rs.load(families.make("llama")), families.tokens(3, 7)
    result = logit_lens(model, tokens, targets=[5, 11], top_k=4)
    assert result.top_tokens.shape == (7, 3, 7, 4)
    with torch.no_grad():
        probs = model.forward(tokens).softmax(-1)
    np.testing.assert_allclose(
        result.target_probs[-1], probs[..., [5, 11]].numpy(), rtol=1e-5, atol=1e-8
    )
    best = probs.topk(4).indices.numpy()
    np.testing.assert_array_equal(result.top_tokens[-1], best)
    above = (probs > probs[..., [5]]).sum(-1).numpy()
    np.testing.assert_array_equal(result.target_ranks[-1, ..., 0], above)
    assert np.isnan(result.loss_nats[:, :, -1]).all()
    assert (result.rank[:, :, -1] == -1).all()
    assert (
        result.rank[-1, :, :-1][result.top_tokens[-1, :, :-1, 0] == tokens[:, 1:].numpy()] == 0
    ).all()


def test_prompts_of_unequal_length_are_read_each_by_itself():
    model = rs.load(families.make("gpt2"))
    short, long = families.tokens(1, 4)[0].tolist(), families.tokens(1, 8, seed=2)[0].tolist()
    both = logit_lens(model, [short, long])
    alone = logit_lens(model, [short])
    np.testing.assert_allclose(both.kl_nats[:, 0, :4], alone.kl_nats[:, 0], atol=1e-5)
    assert np.isnan(both.entropy_nats[:, 0, 4:]).all()
    assert (both.tokens[0, 4:] == -1).all()
    table = both.to_dataframe()
    assert len(table) == 7 * (4 + 8)
    assert set(table.query("prompt == 0")["position"]) == {0, 1, 2, 3}


def test_round_trip_keeps_nan_and_shapes(tmp_path):
    result = logit_lens(rs.load(families.make("opt")), families.tokens(), targets=7)
    again = LogitLensResult.from_json(result.to_json())
    assert again.provenance == result.provenance
    for name in ("kl_nats", "loss_nats", "top_tokens", "target_probs", "layers"):
        np.testing.assert_array_equal(getattr(again, name), getattr(result, name))
    assert again.vocabulary == result.vocabulary
    assert (result.save(tmp_path / "run") / "table.parquet").exists()


def test_without_targets_the_empty_axis_survives_json():
    result = logit_lens(rs.load(families.make("opt")), families.tokens())
    assert LogitLensResult.from_json(result.to_json()).target_probs.shape == (7, 2, 9, 0)


def test_not_a_number_is_not_taken_for_certainty():
    model = rs.load(families.make("llama"))
    with torch.no_grad():
        model.module.get_parameter("model.layers.1.mlp.down_proj.weight")[3, 3] = torch.nan
    result = logit_lens(model, families.tokens())
    assert np.isfinite(result.entropy_nats[:4]).all()
    assert np.isnan(result.entropy_nats[4:]).all()


def test_refusals():
    model = rs.load(families.make("gpt2"))
    with pytest.raises(ConfigError, match=r"top_k must be in 1\.\.96 \(d_vocab\), got 97"):
        logit_lens(model, families.tokens(), top_k=97)
    with pytest.raises(TextError, match=r"token id must be in 0\.\.95, got 96"):
        logit_lens(model, families.tokens(), targets=96)
    with pytest.raises(TextError, match="no tokenizer"):
        logit_lens(model, families.tokens(), targets=" Paris")


def test_needs_a_language_model():
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
    )
    with pytest.raises(UnsupportedModelError, match="logit_lens needs a causal language model"):
        logit_lens(rs.load(BertModel(config)), families.tokens())


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 1000), scale=st.floats(0.1, 30))
def test_readings_obey_their_laws(seed, scale):
    generator = torch.Generator().manual_seed(seed)
    logits, final = scale * torch.randn(2, 2, 3, 11, generator=generator, dtype=torch.float64)
    following = torch.randint(0, 11, (2, 3), generator=generator)
    reading = read_logits(logits, final, following, top_k=2)
    assert (reading.kl >= -1e-12).all()
    assert ((reading.entropy >= -1e-12) & (reading.entropy <= np.log(11) + 1e-12)).all()
    assert ((reading.rank == 0) == (reading.best[..., 0] == following)).all()
    shifted = read_logits(logits + 5.0, final - 3.0, following, top_k=2)
    torch.testing.assert_close(shifted.kl, reading.kl)
    torch.testing.assert_close(shifted.loss, reading.loss)


def test_impossible_tokens_do_not_spoil_the_sums():
    logits = torch.tensor([[[0.0, 0.0, -torch.inf]]])
    reading = read_logits(logits, logits, torch.zeros(1, 1, dtype=torch.long), top_k=1)
    assert reading.kl.item() == 0.0
    assert reading.entropy.item() == pytest.approx(np.log(2))


def test_real_model_speaks_at_the_end(smollm2_path):
    model = rs.load(smollm2_path("smollm2"))
    result = logit_lens(model, "The capital of France is", targets=" Paris")
    assert (result.kl_nats[-1] == 0).all()
    assert result.target_ranks[-1, 0, -1, 0] == 0
    assert result.texts_of(result.top_tokens[-1, 0, -1, :1]) == [" Paris"]
    assert result.texts_of(result.tokens[0]) == ["The", " capital", " of", " France", " is"]
