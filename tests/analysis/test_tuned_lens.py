"""The tuned lens: better on unseen text, saved, loaded, refused where it does not fit."""

import json

import numpy as np
import pytest
import torch

import resstream as rs
from resstream.analysis.logit_lens import logit_lens
from resstream.analysis.tuned_lens import TunedLens, TunedLensConfig, TunedLensResult, tuned_lens
from resstream.errors import CheckpointError, ConfigError, TextError
from tests.analysis import families


@pytest.fixture(scope="module")
def trained():
    model = rs.load(families.make("llama"))
    with torch.no_grad():  # a random model hardly predicts; make its readout decided
        model.module.get_parameter("lm_head.weight").mul_(20)
    before = {name: value.clone() for name, value in model.module.state_dict().items()}
    config = TunedLensConfig(n_tokens=6_000, batch_tokens=160)
    lens, result = tuned_lens(model, families.tokens(40, 16), config=config, n_sampled=None)
    for name, value in model.module.state_dict().items():
        assert torch.equal(value, before[name]), name
    return model, lens, result


def test_held_out_kl_falls_at_every_depth_but_the_last(trained):
    _, _, result = trained
    assert (result.tuned_kl_nats[:-1] < 0.95 * result.logit_kl_nats[:-1]).all()
    assert result.tuned_kl_nats[-1] == result.logit_kl_nats[-1] == 0
    assert result.n_held_out == 4 * 14
    assert result.warnings == ()


def test_an_untrained_lens_is_the_logit_lens(trained):
    model, _, _ = trained
    plain = logit_lens(model, families.tokens(), mid=False)
    through = logit_lens(model, families.tokens(), mid=False, translate=TunedLens.untrained(model))
    np.testing.assert_array_equal(through.kl_nats, plain.kl_nats)
    with pytest.raises(ConfigError, match="ends of blocks only; pass mid=False"):
        logit_lens(model, families.tokens(), translate=TunedLens.untrained(model))


def test_saved_and_loaded(trained, tmp_path):
    model, lens, _ = trained
    lens.save(tmp_path / "lens", model)
    again = TunedLens.load(tmp_path / "lens", model)
    assert torch.equal(again.weights, lens.weights)
    assert torch.equal(again.biases, lens.biases)
    assert json.loads((tmp_path / "lens" / "config.json").read_text())["num_hidden_layers"] == 3
    with pytest.raises(CheckpointError, match="must have 5 translators of width 64"):
        other = families.make("llama").config
        other.hidden_size, other.num_hidden_layers = 64, 5
        TunedLens.load(tmp_path / "lens", rs.load(type(model.module)(other)))


def test_published_files_load_and_pickled_code_does_not_run(trained, tmp_path):
    model, lens, _ = trained
    names = {"weight": lens.weights, "bias": lens.biases}
    tensors = {f"{i}.{name}": value[i] for name, value in names.items() for i in range(3)}
    torch.save(tensors, tmp_path / "params.pt")
    assert torch.equal(TunedLens.load(tmp_path, model).weights, lens.weights)
    torch.save({"0.weight": print}, tmp_path / "params.pt")
    with pytest.raises(CheckpointError, match=r"can't be read safely|damaged"):
        TunedLens.load(tmp_path, model)
    (tmp_path / "params.safetensors").write_bytes(b"no tensors")
    with pytest.raises(CheckpointError, match="damaged"):
        TunedLens.load(tmp_path, model)
    with pytest.raises(CheckpointError, match="no lens in"):
        TunedLens.load(tmp_path / "nowhere", model)


def test_refusals():
    model = rs.load(families.make("gpt2"))
    with pytest.raises(TextError, match="at least 2 sequences"):
        tuned_lens(model, families.tokens(1, 8))
    with pytest.raises(ConfigError, match="n_tokens must be at least 1, got 0"):
        tuned_lens(model, families.tokens(), config=TunedLensConfig(n_tokens=0))
    with pytest.raises(ConfigError, match="momentum in"):
        tuned_lens(model, families.tokens(), config=TunedLensConfig(momentum=1.0))


def test_a_lens_that_does_not_help_is_warned_of():
    model = rs.load(families.make("gpt2"))
    config = TunedLensConfig(learning_rate=1e-30, n_tokens=64, batch_tokens=32)
    _, result = tuned_lens(model, families.tokens(8, 8), config=config, n_sampled=None)
    assert "no better than the logit lens" in result.warnings[0]


def test_round_trip(trained):
    _, _, result = trained
    again = TunedLensResult.from_json(result.to_json())
    np.testing.assert_array_equal(again.tuned_kl_nats, result.tuned_kl_nats)
    assert len(result.to_dataframe()) == 4
    assert result.plot().data
