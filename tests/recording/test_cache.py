"""Activations of a prompt: the module's own values, under TransformerLens's names."""

import warnings
from pathlib import Path

import pytest
import torch

import resstream as rs
from resstream.errors import TextError, UnknownSiteError
from tests.analysis import families


def test_values_are_the_modules_own() -> None:
    module, tokens = families.make("llama"), families.tokens()
    logits, cache = rs.run_with_cache(rs.load(module), tokens)
    with torch.no_grad():
        own = module(tokens, output_hidden_states=True)
    assert torch.equal(logits, own.logits)
    for layer in range(3):
        assert torch.equal(cache["resid_pre", layer], own.hidden_states[layer])
    assert torch.equal(cache["ln_final.hook_normalized"], own.hidden_states[3])
    assert torch.equal(cache["embed"], own.hidden_states[0])


def test_one_value_by_many_names() -> None:
    _, cache = rs.run_with_cache(rs.load(families.make("gpt2")), families.tokens())
    value = cache["blocks.2.hook_resid_post"]
    for key in ("blocks.2.resid_post", ("resid_post", 2), ("resid_post", -1)):
        assert cache[key] is value
        assert key in cache
    assert cache["normalized", None, "ln_final"] is cache["ln_final.hook_normalized"]
    assert torch.equal(cache.stack_activation("resid_post")[2], value)
    assert list(cache)[:2] == ["hook_embed", "blocks.0.hook_resid_pre"]
    assert ("resid_post", 3) not in cache
    assert 7 not in cache
    with pytest.raises(UnknownSiteError, match=r"this model has 3 blocks \(0..2\)"):
        cache["resid_post", 3]


def test_stream_is_what_was_there_plus_the_writes() -> None:
    _, cache = rs.run_with_cache(rs.load(families.make("gpt2")), families.tokens())
    middle = cache["resid_pre", 1] + cache["attn_out", 1]
    torch.testing.assert_close(middle, cache["resid_mid", 1])
    torch.testing.assert_close(middle + cache["mlp_out", 1], cache["resid_post", 1])


@pytest.mark.parametrize(
    ("names", "count"),
    [("blocks.*.resid_post", 3), (["blocks.0.attn_out", "embed"], 2), (lambda n: "mid" in n, 3)],
)
def test_only_what_was_asked_for(names, count: int) -> None:
    _, cache = rs.run_with_cache(
        rs.load(families.make("llama")), families.tokens(), names_filter=names
    )
    assert len(cache) == count


def test_prompts_of_unequal_length_are_refused(demo: rs.StreamModel) -> None:
    with pytest.raises(TextError, match="must have the same number of tokens"):
        rs.run_with_cache(demo, ["Once", "Once upon a time"])


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma3", "opt"])
def test_equals_the_cache_of_transformer_lens(family: str, tmp_path: Path) -> None:
    module, tokens = families.make(family), families.tokens()
    module.set_attn_implementation("eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bridge = families.bridge(module, tmp_path)
        _, theirs = bridge.run_with_cache(tokens)
        _, cache = rs.run_with_cache(rs.load(module), tokens)
        ours = cache.to_transformer_lens(bridge)
    assert type(ours) is type(theirs)
    writes = {"hook_attn_out", "hook_mlp_out"}
    assert {name.rpartition(".")[2] for name in ours} >= {"hook_resid_mid", *writes}
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-5, atol=1e-6)
    for key in (("resid_post", 1), ("resid_pre", -1), ("attn_out", 0), ("mlp_out", 2)):
        torch.testing.assert_close(cache[key], theirs[key], rtol=1e-5, atol=1e-6)
    stack = ours.accumulated_resid(incl_mid=True)
    torch.testing.assert_close(stack, theirs.accumulated_resid(incl_mid=True), rtol=1e-5, atol=1e-6)
    parts = ours.decompose_resid()
    torch.testing.assert_close(parts, theirs.decompose_resid(), rtol=1e-5, atol=1e-5)


def test_kept_activations_take_the_same_keys(tmp_path: Path) -> None:
    from resstream.recording.activations import open_activations

    model, tokens = rs.load(families.make("llama")), families.tokens()
    rs.record(model, tokens, sites=["blocks.*.resid_post"], keep=tmp_path / "kept")
    kept = open_activations(tmp_path / "kept")
    _, cache = rs.run_with_cache(model, tokens)
    torch.testing.assert_close(kept["resid_post", -1], cache["resid_post", -1].flatten(0, 1))
