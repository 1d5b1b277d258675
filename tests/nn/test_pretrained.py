"""Do transformers' own tools work on the native model unchanged?"""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from resstream.errors import UnsupportedModelError
from resstream.nn.config import TransformerConfig
from resstream.nn.conversion import from_gpt2, from_llama
from resstream.nn.pretrained import ResstreamConfig, ResstreamForCausalLM, register_auto_classes
from resstream.nn.rules import RULES, AdaLNZero, LayerScale

SIZES: dict[str, Any] = {
    "n_layers": 3,
    "d_model": 32,
    "n_heads": 4,
    "n_kv_heads": 2,
    "d_vocab": 50,
    "n_ctx": 32,
}


def pretrained(**changes) -> ResstreamForCausalLM:
    torch.manual_seed(0)
    config = ResstreamConfig.of(TransformerConfig(**(SIZES | changes)))
    return ResstreamForCausalLM(config).eval()


def some_tokens(batch: int = 2, pos: int = 7) -> torch.Tensor:
    return torch.randint(0, 50, (batch, pos), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("rule", [rule() for rule in RULES], ids=lambda rule: rule.kind)
def test_save_and_load_is_bit_exact(rule, tied, tmp_path):
    register_auto_classes()
    model = pretrained(rule=rule, tied=tied)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert isinstance(loaded, ResstreamForCausalLM)
    assert loaded.config.shape == model.config.shape
    theirs, ours = loaded.state_dict(), model.state_dict()
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(theirs[name], ours[name]) for name in ours)
    assert torch.equal(loaded(some_tokens()).logits, model(some_tokens()).logits)


def test_half_precision_load_keeps_gates_in_float32(tmp_path):
    register_auto_classes()
    pretrained(rule=LayerScale(init=0.1)).save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert loaded.model.embed.weight.dtype == torch.bfloat16
    gamma = loaded.model.blocks[0].scales["attn"].gamma
    assert torch.equal(gamma, torch.full((32,), 0.1))


@pytest.mark.parametrize("rule", [rule() for rule in RULES], ids=lambda rule: rule.kind)
def test_what_belongs_to_a_write_is_loaded_in_float32(rule, tmp_path):
    register_auto_classes()
    model = pretrained(rule=rule)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float16)
    before = dict(model.named_parameters())
    for name, parameter in loaded.named_parameters():
        is_of_a_write = ".scales." in name
        assert parameter.dtype == (torch.float32 if is_of_a_write else torch.float16)
        if is_of_a_write:
            assert torch.equal(parameter, before[name])


def test_the_condition_reaches_the_blocks():
    model = pretrained(rule=AdaLNZero(d_condition=6))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    condition, tokens = torch.randn(2, 6), some_tokens()
    given = model(tokens, condition=condition).logits
    torch.testing.assert_close(given, model.model(tokens, condition=condition))
    assert not torch.allclose(given, model(tokens).logits)


def test_a_tied_classifier_is_drawn_as_the_embedding():
    """Fixup's classifier is zero; transformers draws it after the two were tied."""
    embed = pretrained(rule="fixup", tied=True, d_model=64).model.embed.weight
    assert embed.std().item() == pytest.approx(64**-0.5, rel=0.05)
    assert not pretrained(rule="fixup", tied=False).model.unembed.weight.any()


def test_loss_is_the_mean_over_predicted_tokens():
    model, tokens = pretrained(), some_tokens()
    labels = tokens.clone()
    labels[0, :3] = -100
    output = model(tokens, labels=labels)
    log_probs = output.logits[:, :-1].log_softmax(-1)
    picked = log_probs.gather(-1, tokens[:, 1:, None])[..., 0]
    is_scored = labels[:, 1:] != -100
    torch.testing.assert_close(output.loss, -picked[is_scored].mean())
    summed = model(tokens, labels=labels, num_items_in_batch=4).loss
    torch.testing.assert_close(summed, -picked[is_scored].sum() / 4)


def test_bidirectional_loss_is_not_shifted():
    model, tokens = pretrained(causal=False), some_tokens()
    output = model(tokens, labels=tokens)
    log_probs = output.logits.log_softmax(-1).gather(-1, tokens[..., None])
    torch.testing.assert_close(output.loss, -log_probs.mean())


@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_generate_with_and_without_cache(positions):
    model, tokens = pretrained(positions=positions), some_tokens()
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    cached = model.generate(tokens, **options)
    fresh = model.generate(tokens, use_cache=False, **options)
    assert cached.shape == (2, 15)
    assert torch.equal(cached, fresh)


@pytest.mark.parametrize("rule", ["plain", "residual_attention", "highway", "deepnorm", "fixup"])
def test_a_cached_suffix_gives_the_same_logits(rule):
    model, tokens = pretrained(rule=rule), some_tokens()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    whole = model(tokens).logits
    head = model(tokens[:, :3], use_cache=True)
    name = "cache" if "cache" in head else "past_key_values"
    tail = model(tokens[:, 3:], **{name: head[name]})
    torch.testing.assert_close(tail.logits, whole[:, 3:])


def test_left_padding_changes_nothing():
    model, tokens = pretrained(), some_tokens()
    padded = torch.cat([torch.zeros(2, 3, dtype=torch.long), tokens], dim=1)
    mask = torch.cat([torch.zeros(2, 3), torch.ones(2, 7)], dim=1).long()
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    logits = model(padded, attention_mask=mask, position_ids=positions).logits
    torch.testing.assert_close(logits[:, 3:], model(tokens).logits)
    assert not torch.allclose(model(padded).logits[:, 3:], model(tokens).logits)


def test_checkpointing_gives_the_same_gradients():
    plain, saving = pretrained().train(), pretrained().train()
    name = "activation_checkpointing_enable"  # gradient_... before transformers 5.20 or so
    getattr(saving, name, saving.gradient_checkpointing_enable)()
    assert saving.model.gradient_checkpointing
    for model in (plain, saving):
        model(some_tokens(), labels=some_tokens()).loss.backward()
    pairs = zip(plain.parameters(), saving.parameters(), strict=True)
    assert all(torch.equal(one.grad, other.grad) for one, other in pairs)


def test_resized_vocabulary_is_saved(tmp_path):
    register_auto_classes()
    model = pretrained()
    model.resize_token_embeddings(60)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded(some_tokens()).logits.shape[-1] == 60 == loaded.config.shape.d_vocab


def test_unknown_arguments_are_refused():
    with pytest.raises(TypeError, match=r"does not know \['output_attentions'\]"):
        pretrained()(some_tokens(), output_attentions=True)


@pytest.mark.parametrize("tied", [True, False])
def test_llama_weights_give_llamas_logits(tiny_llama, tied):
    llama = tiny_llama(num_hidden_layers=3, tie_word_embeddings=tied)
    native = from_llama(llama)
    tokens = some_tokens(pos=20)
    with torch.no_grad():
        expected = llama(tokens).logits
        difference = (native(tokens).logits - expected).abs().max()
    assert difference <= 1e-5 * expected.abs().max()
    assert native.config.shape.tied is tied


def test_llama_with_other_positions_is_refused(tiny_llama):
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    llama = tiny_llama(num_hidden_layers=1, rope_parameters=rope)
    with pytest.raises(UnsupportedModelError, match=r"rope_type 'linear'"):
        from_llama(llama)


def test_gpt2_weights_give_gpt2s_logits():
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=50, n_positions=32, n_embd=32, n_layer=3, n_head=4)
    gpt2 = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in gpt2.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
        expected = gpt2(some_tokens(pos=20)).logits
        difference = (from_gpt2(gpt2)(some_tokens(pos=20)).logits - expected).abs().max()
    assert difference <= 1e-5 * expected.abs().max()


def test_smollm2_weights_give_smollm2s_logits(smollm2_path):
    theirs = AutoModelForCausalLM.from_pretrained(smollm2_path("smollm2"), dtype=torch.float32)
    tokens = torch.randint(0, 49152, (1, 12), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = theirs(tokens).logits
        difference = (from_llama(theirs)(tokens).logits - expected).abs().max()
    assert difference <= 1e-5 * expected.abs().max()


def test_masks_of_other_shapes_are_refused():
    with pytest.raises(ValueError, match=r"must be \[batch, key\], got 4 axes"):
        pretrained()(some_tokens(), attention_mask=torch.ones(2, 1, 7, 7))
