"""Does a run learn, end early without loss, and go on to the very same weights?"""

import os
import signal
from typing import Any

import numpy as np
import pytest
import torch

import resstream as rs
from resstream.errors import CheckpointError, ConfigError, OutputError
from resstream.train.config import read_config
from resstream.train.interruption import TrainingInterrupted
from resstream.train.training import run_training


def train(
    path: Any, out: Any, *, resume: bool = False, interrupt_at: int = 0, **changes: Any
) -> Any:
    def log(step: int, entry: dict[str, float]) -> None:
        if step == interrupt_at and "loss" in entry:
            os.kill(os.getpid(), signal.SIGINT)

    config = read_config(path, output=str(out), **changes)
    return run_training(config, resume=resume, log=log)


def same_weights(one: Any, other: Any) -> bool:
    first, second = (rs.load(place).module.state_dict() for place in (one, other))
    return all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("rule", ["plain", "fixup"])
def test_interrupted_and_resumed_is_the_same_bitwise(written, tmp_path, rule):
    # Dropout, so that the state of the generator counts too.
    path = written(
        {
            "model.rule": rule,
            "model.dropout": 0.1,
            "training.log_every": 1,
            "training.evaluate_every": 2,
        }
    )
    whole = train(path, tmp_path / "whole")
    with pytest.raises(TrainingInterrupted, match="interrupted after step 4; --resume goes on"):
        train(path, tmp_path / "parts", interrupt_at=3)
    assert (tmp_path / "parts" / "checkpoints" / "checkpoint-4").is_dir()
    parts = train(path, tmp_path / "parts", resume=True)
    assert (whole.resumed_from, parts.resumed_from) == (None, 4)
    assert whole.n_steps == parts.n_steps == 6
    assert same_weights(tmp_path / "whole", tmp_path / "parts")
    assert np.array_equal(whole.logged_loss, parts.logged_loss)
    assert np.array_equal(whole.validation_loss, parts.validation_loss)
    assert np.array_equal(whole.recording.relative_norm, parts.recording.relative_norm)
    assert len(whole.validation_steps) == 3


def test_a_run_is_a_checkpoint_and_a_result(written, tmp_path):
    result = train(written({"training.steps": 30, "training.batch": 8}), tmp_path / "run")
    assert result.final_loss < result.logged_loss[0] - 0.5
    assert result.n_tokens == 30 * 8 * 16
    model = rs.load(tmp_path / "run")
    assert model.spec.n_layers == 2
    assert model.weights_hash == result.provenance.model_hash
    assert rs.load_result(tmp_path / "run").to_json() == result.to_json()
    assert rs.load_result(tmp_path / "run" / "monitor").n_steps == 30
    ids = model.tokenizer("The ", return_tensors="pt")["input_ids"]
    module: Any = model.module
    text = model.tokenizer.decode(module.generate(ids, max_new_tokens=5)[0])
    assert text.startswith("The ")


def test_groups_have_the_rates_of_their_rule(written, tmp_path):
    seen: list[Any] = []

    def look(step: int, entry: dict[str, float]) -> None:
        seen.append(entry.get("learning_rate"))

    path = written(
        {"model.rule": "fixup", "training.schedule": "constant", "training.log_every": 1}
    )
    run_training(read_config(path, output=str(tmp_path / "run")), log=look)
    assert seen[0] == pytest.approx(3e-3), "the log shows the full rate, not the tenth of biases"
    state = torch.load(
        tmp_path / "run" / "checkpoints" / "checkpoint-6" / "optimizer.pt", weights_only=True
    )
    rates = sorted({round(group["lr"], 6) for group in state["param_groups"]})
    assert rates == [3e-4, 3e-3]


def test_bfloat16_computes_in_it_and_keeps_weights_in_float32(written, tmp_path):
    path = written({"training.dtype": "bfloat16", "model.rule": "layer_scale"})
    seen = train(path, tmp_path / "run")
    assert rs.load(tmp_path / "run").dtype == torch.float32
    plain = train(path, tmp_path / "plain", training__dtype="float32")
    assert not np.array_equal(seen.recording.loss, plain.recording.loss)
    assert seen.recording.loss == pytest.approx(plain.recording.loss, rel=1e-2)


def test_checkpointed_activations_change_nothing(written, tmp_path):
    plain = train(written(), tmp_path / "plain")
    saving = train(written({"training.checkpointed": True}, "saving.yaml"), tmp_path / "saving")
    assert np.array_equal(plain.recording.loss, saving.recording.loss)


def test_a_run_without_a_monitor(written, tmp_path):
    result = train(written({"monitor": False, "text.validation_share": 0.0}), tmp_path / "run")
    assert result.recording is None
    assert result.final_validation_loss is None
    assert len(result.logged_loss) == 3
    assert rs.load_result(tmp_path / "run").to_json() == result.to_json()


def test_models_of_several_streams_train_without_a_monitor(written, tmp_path):
    path = written({"model.rule": "residual_attention"})
    with pytest.raises(ConfigError, match="monitor must be false for this model, got true"):
        train(path, tmp_path / "watched")
    result = train(
        written({"model.rule": "residual_attention", "monitor": False}), tmp_path / "run"
    )
    assert np.isfinite(result.final_loss)
    assert np.isnan(result.provenance.replay_error)


def test_a_run_is_not_lost_under_another(written, tmp_path):
    path = written()
    train(path, tmp_path / "run")
    with pytest.raises(OutputError, match=r"holds a run already \(training.yaml\).*--resume"):
        train(path, tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"training__learning_rate": 1e-4}, r"training.learning_rate was 0.003, got 0.0001"),
        ({"training__seed": 5}, r"training.seed was 0, got 5"),
        ({"model__n_layers": 3}, r"model.n_layers was 2, got 3"),
        ({"text__files": ["other.txt"]}, r"the same text: its hash was \w+, now it is"),
    ],
)
def test_another_run_is_not_resumed(written, tmp_path, changes, said, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.txt").write_text("another text " * 300)
    path = written()
    with pytest.raises(TrainingInterrupted):
        train(path, tmp_path / "run", interrupt_at=2)
    with pytest.raises(ConfigError, match=said):
        train(path, tmp_path / "run", resume=True, **changes)


def test_a_longer_run_may_go_on(written, tmp_path):
    path = written({"training.schedule": "constant"})
    train(path, tmp_path / "run")
    longer = train(path, tmp_path / "run", resume=True, training__steps=8)
    assert (longer.resumed_from, longer.n_steps) == (6, 8)
    assert longer.recording.steps.tolist() == list(range(1, 9))


def test_a_finished_run_is_left_alone(written, tmp_path):
    path = written()
    train(path, tmp_path / "run")
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    with pytest.raises(ConfigError, match=r"nothing to resume: .*run has 6 of 6 steps"):
        train(path, tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before


def test_a_damaged_checkpoint_is_named(written, tmp_path):
    path = written()
    with pytest.raises(TrainingInterrupted):
        train(path, tmp_path / "run", interrupt_at=2)
    (weights,) = (tmp_path / "run" / "checkpoints").glob("*/*.safetensors")
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"no whole safetensors file.*remove .*checkpoint-"):
        train(path, tmp_path / "run", resume=True)


def test_what_cannot_be_run(written, tmp_path):
    with pytest.raises(ConfigError, match="output must be the directory of the run"):
        run_training(read_config(written()))
    with pytest.raises(ConfigError, match="--resume needs a checkpoint in"):
        train(written(), tmp_path / "none", resume=True)
    with pytest.raises(ConfigError, match="must be float32 or bfloat16 on a CPU, got 'float16'"):
        train(written({"training.dtype": "float16"}), tmp_path / "run")
    with pytest.raises(ConfigError, match="device 'nowhere' can't be used for this run"):
        run_training(read_config(written(), output=str(tmp_path / "run")), device="nowhere")
