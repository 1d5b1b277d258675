"""Does a configuration mean what it says, and is all else refused in one line that helps?"""

from pathlib import Path

import pytest

from resstream.errors import ConfigError
from resstream.train.config import BpeTokenizer, Monitoring, read_config, write_config


def test_what_is_read_and_what_is_default(written):
    config = read_config(written({"tokenizer": "bytes", "text": ["a.txt", "b.txt"]}))
    assert config.training.steps == 6
    assert config.training.clip == 1.0
    assert config.text.files == (Path("a.txt"), Path("b.txt"))
    assert config.monitor == Monitoring()
    assert config.shape(300).d_vocab == 300
    assert read_config(written({"monitor": False})).monitor is None
    bpe = read_config(written({"tokenizer": {"kind": "bpe", "d_vocab": 300}})).tokenizer
    assert bpe == BpeTokenizer(d_vocab=300)


def test_what_is_written_is_read_back(written, tmp_path):
    config = read_config(
        written({"model.rule": {"kind": "layer_scale", "init": 0.1}, "text": "a.txt"})
    )
    write_config(tmp_path / "again.yaml", config)
    assert read_config(tmp_path / "again.yaml") == config


def test_changes_take_the_place_of_what_stands_there(written):
    path = written({"text": "a.txt"})
    changes = {
        "training__steps": 9,
        "text__files": ["b.txt"],
        "output": "run",
        "training__seed": None,
    }
    config = read_config(path, **changes)
    assert (config.training.steps, config.training.seed) == (9, 0)
    assert config.text.files == (Path("b.txt"),)
    assert config.output == Path("run")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("trainig", 1, r"trainig: 1 has an unknown key; known keys of the file: model, training"),
        ("training.stepz", 5, r"training.stepz: 5 has .*known keys of training: steps, batch"),
        ("model.n_layerz", 5, r"model.n_layerz: 5 has .*known keys of model: n_layers, d_model"),
        ("tokenizer.kind", "words", r"tokenizer must be of a kind in .*'bytes'.*'bpe'"),
        (
            "tokenizer",
            {"kind": "bpe", "size": 5},
            r"size: 5 has .*known keys of tokenizer.bpe: kind",
        ),
        ("training.steps", 0, r"training.steps must be greater than or equal to 1, got 0"),
        ("training.steps", 2.5, r"training.steps must be a valid integer, got 2.5"),
        ("training.batch", True, r"training.batch must be a valid integer, got True"),
        ("training.schedule", "step", r"must be 'linear', 'cosine', .*, got 'step'"),
        ("training.dtype", "float64", r"must be 'float32', 'bfloat16' or 'float16', got 'float64'"),
        ("training.learning_rate", 0, r"training.learning_rate must be greater than 0, got 0"),
        ("training.learning_rate", float("nan"), r"learning_rate must be a finite number, got nan"),
        ("text.validation_share", 0.9, r"must be less than or equal to 0.5, got 0.9"),
        ("monitor.positions", 1, r"monitor.positions must be greater than or equal to 2, got 1"),
        ("model.n_layers", -1, r"n_layers must be a whole number of at least 1, got -1"),
        ("model.n_heads", 3, r"n_heads must divide d_model \(16\) .*got 3"),
        ("model.rule", "highroad", r"rule.*must be one of .*'?rezero.*got 'highroad'"),
        ("model.d_vocab", 9, r"model.d_vocab must not be given, got 9"),
    ],
)
def test_refusals(written, key, value, said):
    with pytest.raises(ConfigError, match=said) as caught:
        read_config(written({key: value}))
    assert "\n" not in str(caught.value)


def test_what_is_missing_is_named(written, tmp_path):
    (tmp_path / "short.yaml").write_text("model: {n_layers: 2}\n")
    with pytest.raises(ConfigError, match="training is missing"):
        read_config(tmp_path / "short.yaml")
    with pytest.raises(ConfigError, match=r"lacks \['n_heads'"):
        read_config(written({"model": {"n_layers": 2, "d_model": 16, "n_ctx": 8}}))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model: {n_layers: 2\n", "is not YAML"),
        ("- 1\n", "must hold a mapping"),
        ("training: {steps: 1, steps: 2}\n", "line 1: 'steps' stands twice"),
        ("model: !!python/object:os.system {}\n", "is not YAML"),
    ],
)
def test_files_that_are_no_configuration(tmp_path, text, said):
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_config(tmp_path / "bad.yaml")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read .*none.yaml: No such file"):
        read_config(tmp_path / "none.yaml")


def test_powers_of_ten_are_numbers(tmp_path):
    """YAML 1.1 takes 1e-3, which has no dot, for text; rules would then be refused."""
    (tmp_path / "run.yaml").write_text(
        "model: {n_layers: 1, d_model: 16, n_heads: 2, n_ctx: 8,"
        " rule: {kind: layer_scale, init: 1e-5}}\ntraining: {steps: 1, learning_rate: 3e-3}\n"
    )
    config = read_config(tmp_path / "run.yaml")
    assert config.training.learning_rate == 3e-3
    assert config.model["rule"]["init"] == 1e-5


def test_the_examples_are_read():
    examples = sorted((Path(__file__).parents[2] / "examples" / "train").glob("*.yaml"))
    assert examples
    for path in examples:
        assert read_config(path).training.steps > 0
