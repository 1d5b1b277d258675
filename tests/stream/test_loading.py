"""Checkpoints on disk: what loads, and what is refused in one clear sentence."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from resstream.errors import CheckpointError, ConfigError, OutputError, UnsupportedModelError
from resstream.stream.loading import load
from resstream.stream.model import StreamModel
from resstream.stream.saving import save_model


@pytest.fixture
def checkpoint(tiny_llama: Any, tmp_path: Path) -> Path:
    tiny_llama().save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


TOKENS = torch.arange(10)[None]


def test_a_directory(checkpoint: Path, tiny_llama: Any) -> None:
    model = load(checkpoint)
    assert model.name == str(checkpoint)
    assert model.dtype == torch.float32
    assert model.tokenizer is None
    with torch.no_grad():
        assert torch.equal(model.forward(TOKENS), tiny_llama()(TOKENS).logits)
    assert load(model) is model


def test_dtype(checkpoint: Path) -> None:
    model = load(checkpoint, dtype="bfloat16")
    assert model.dtype == torch.bfloat16
    assert model.spec.replay_error == 0
    assert not any(block.opaque for block in model.spec.blocks)
    with pytest.raises(CheckpointError, match=r"dtype must be float32, .* got 'int8'"):
        load(checkpoint, dtype="int8")


def test_no_other_checkpoint_is_overwritten(checkpoint: Path) -> None:
    before = (checkpoint / "model.safetensors").read_bytes()
    with pytest.raises(OutputError, match="holds a checkpoint already"):
        save_model(load(checkpoint), checkpoint)
    assert (checkpoint / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize("source", [None, 42, {"a": 1}])
def test_what_is_no_model_is_refused(source: Any) -> None:
    with pytest.raises(CheckpointError, match="source must be a path, a hub id or a module"):
        load(source)


@pytest.mark.parametrize("device", ["cuda:99", "abacus"])
def test_a_device_that_is_not_there(checkpoint: Path, device: str) -> None:
    with pytest.raises(ConfigError, match=f"device '{device}' can't be used"):
        load(checkpoint, device=device)


def test_save_and_load_again(checkpoint: Path, tmp_path: Path) -> None:
    model = load(checkpoint)
    again = load(save_model(model, tmp_path / "again"))
    assert again.weights_hash == model.weights_hash


def test_a_lens_bridge(checkpoint: Path) -> None:
    pytest.importorskip("transformer_lens")
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import LlamaForCausalLM

    from tests.stream.test_texts import word_tokenizer

    module = LlamaForCausalLM.from_pretrained(checkpoint)
    word_tokenizer(bos=False).save_pretrained(checkpoint)
    bridge = TransformerBridge.boot_transformers(str(checkpoint), hf_model=module, device="cpu")
    ids = torch.arange(2, 12)[None]
    with torch.no_grad():
        before = module(ids).logits
    model = load(bridge)
    with torch.no_grad():
        assert torch.equal(module(ids).logits, before), "its weights must be left as they were"
        assert torch.equal(model.forward(ids), before)
    assert model.spec.n_layers == 6
    assert [write.name for write in model.spec.writes] == ["attn", "mlp"] * 6
    assert model.spec.replay_error == 0


def truncate(place: Path) -> None:
    file = place / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


def empty_weights(place: Path) -> None:
    (place / "model.safetensors").write_bytes(b"")


def drop_weight(place: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(place / "model.safetensors")
    del weights["model.layers.2.mlp.down_proj.weight"]
    save_file(weights, place / "model.safetensors", metadata={"format": "pt"})


def break_config(place: Path) -> None:
    (place / "config.json").write_text("{oops")


def set_config(**changed: Any) -> Any:
    def change(place: Path) -> None:
        config = json.loads((place / "config.json").read_text())
        (place / "config.json").write_text(json.dumps(config | changed))

    return change


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, r"cannot load .*tiny/model\.safetensors"),
        (empty_weights, r"cannot load .*tiny/model\.safetensors"),
        (set_config(hidden_size=16), r"shape .*, first .*: \(\d+.*\) instead of \("),
        (drop_weight, r"lacks 1 of the model's weights, first model.layers.2.mlp.down_proj"),
        (break_config, "config.json is not JSON"),
        (set_config(model_type="no-such-thing"), "no-such-thing"),
        (lambda place: (place / "config.json").unlink(), "has no config.json"),
        (lambda place: (place / "model.safetensors").unlink(), "cannot load .*tiny"),
    ],
)
def test_damaged_checkpoints(checkpoint: Path, damage: Any, message: str) -> None:
    damage(checkpoint)
    with pytest.raises(CheckpointError, match=message) as caught:
        load(checkpoint)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("./nowhere", "no such checkpoint: ./nowhere"),
        ("/nowhere/at/all.gguf", "no such checkpoint"),
        (
            "no-such-model-anywhere",
            "no such file or directory: no-such-model-anywhere; nor is it in",
        ),
        ("x" * 300, "no such checkpoint"),
        ("", "got an empty name"),
        ("demo:nothing", "unknown demo 'demo:nothing'; there are demo, demo:collapsed"),
    ],
)
def test_missing_checkpoints(source: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        load(source)


def test_weights_without_a_place_are_said(checkpoint: Path) -> None:
    set_config(num_hidden_layers=3)(checkpoint)
    with pytest.warns(UserWarning, match=r"27 weights .* not used .*first model.layers.3"):
        assert load(checkpoint).spec.n_layers == 3


def test_a_damaged_tokenizer_is_said(checkpoint: Path) -> None:
    (checkpoint / "tokenizer.json").write_text("{broken")
    with pytest.warns(UserWarning, match="going on without the tokenizer of"):
        assert load(checkpoint).tokenizer is None


def test_pickled_code_does_not_run(checkpoint: Path, tmp_path: Path) -> None:
    """A torch file that would run code when unpickled is refused."""

    class Payload:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "ran",))

    (checkpoint / "model.safetensors").unlink()
    torch.save({"payload": Payload()}, checkpoint / "pytorch_model.bin")
    with pytest.raises(CheckpointError):
        load(checkpoint)
    assert not (tmp_path / "ran").exists()


def test_encoder_decoders_are_refused_before_their_weights_load(tmp_path: Path) -> None:
    from transformers import T5Config

    T5Config().save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match=r"encoder-decoder \(t5\)"):
        load(tmp_path)


def test_nan_weights_load(checkpoint: Path) -> None:
    model = load(checkpoint)
    with torch.no_grad():
        model.module.get_parameter("model.layers.3.mlp.down_proj.weight")[0, 0] = torch.nan
    again = StreamModel(model.module, name="nan")
    assert again.spec.replay_error == 0
    assert again.spec.writes == model.spec.writes or not any(b.opaque for b in again.spec.blocks)


@pytest.mark.parametrize("name", ["smollm2", "smollm2.gguf"])
def test_smollm2(smollm2_path: Any, name: str) -> None:
    from transformers import AutoModelForCausalLM

    model = load(smollm2_path(name))
    assert (model.spec.n_layers, model.spec.d_model) == (30, 576)
    assert model.spec.replay_error == 0
    assert max(write.residue for write in model.spec.writes) < 1e-4
    tokens = torch.arange(100, 164)[None]
    reference = AutoModelForCausalLM.from_pretrained(smollm2_path("smollm2"), dtype=torch.float32)
    with torch.no_grad():
        difference = (reference.eval()(tokens).logits - model.forward(tokens)).abs().max()
    assert difference <= 1e-4
