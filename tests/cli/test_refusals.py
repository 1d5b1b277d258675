"""What can't be done is said in one line, with exit status 2, and leaves nothing half-written."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]


def refused(shown: Any, *parts: str) -> str:
    """The error line of a refused run; `parts` must stand in it."""
    assert shown.exit_code == 2, shown.output
    assert shown.stdout == ""
    *progress, line = shown.stderr.splitlines()
    assert line.startswith("resstream: error: "), line
    assert not any("error" in other for other in progress)
    for part in parts:
        assert part in line
    return line


def nothing_left(folder: Path) -> bool:
    return not any(".part" in path.name for path in folder.rglob("*"))


def test_no_such_model(call: Call, tmp_path: Path) -> None:
    refused(call("inspect", tmp_path / "nothing"), "no such checkpoint", "nothing")


def test_truncated_weights(call: Call, copy: Path) -> None:
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    refused(call("inspect", copy), "cannot load", str(copy))


def test_missing_config(call: Call, copy: Path) -> None:
    (copy / "config.json").unlink()
    refused(call("check", copy), "config.json")


def test_damaged_config(call: Call, copy: Path) -> None:
    (copy / "config.json").write_text("{")
    refused(call("check", copy), "config.json is not JSON")


def test_missing_weights(call: Call, copy: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(copy / "model.safetensors")
    del weights["model.layers.1.mlp.down_proj.weight"]
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    refused(call("inspect", copy), "lacks 1", "model.layers.1.mlp.down_proj.weight")


@pytest.mark.parametrize("verb", ["record", "ablate", "check"])
def test_text_that_is_not_utf8(call: Call, demo_copy: Path, tmp_path: Path, verb: str) -> None:
    text = tmp_path / "latin.txt"
    text.write_bytes("caf\xe9 ".encode("latin-1") * 100)
    refused(call(verb, demo_copy, "--text", text), "latin.txt", "UTF-8")


def test_empty_text(call: Call, demo_copy: Path, tmp_path: Path) -> None:
    text = tmp_path / "empty.txt"
    text.write_text("\n")
    refused(call("check", demo_copy, "--text", text), "empty")


def test_no_such_text(call: Call, demo_copy: Path, tmp_path: Path) -> None:
    refused(call("check", demo_copy, "--text", tmp_path / "no.txt"), "no.txt")


def test_text_without_a_tokenizer(call: Call, checkpoint: Path, tmp_path: Path) -> None:
    text = tmp_path / "some.txt"
    text.write_text("some words")
    refused(call("check", checkpoint, "--text", text), "has no tokenizer")


def test_context_that_is_too_long(call: Call, checkpoint: Path) -> None:
    refused(call("check", checkpoint, "--context", 65), "context must be in 2..64")


@pytest.mark.parametrize("layers", ["3", "0,7", "2-3"])
def test_unknown_layer(call: Call, checkpoint: Path, layers: str) -> None:
    refused(call("ablate", checkpoint, "--layers", layers), "layer must be in 0..2")
    refused(call("ablate", checkpoint, "--group", layers), "layer must be in 0..2")


@pytest.mark.parametrize("layers", ["", "a", "1-", "-1", "1,,2", "2-1"])
def test_what_is_no_list_of_layers(call: Call, checkpoint: Path, layers: str) -> None:
    refused(call("ablate", checkpoint, f"--layers={layers}"), "layers must be a list such as")


def test_unknown_layer_of_a_fault(call: Call, checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("--fault", "zero", "--write", "mlp", "--out", out, "--layer")
    refused(call("inject", checkpoint, *arguments, 3), "layer must be in 0..2, got 3")
    assert not out.exists()


def test_unknown_site(call: Call, checkpoint: Path) -> None:
    refused(call("ablate", checkpoint, "--sites", "blocks.1.atn_out"), "did you mean")


def test_choices_that_exclude_each_other(call: Call, checkpoint: Path) -> None:
    shown = call("ablate", checkpoint, "--layers", 1, "--sites", "blocks.*.mlp_out")
    refused(shown, "exclude each other")


def test_device_that_is_not_there(call: Call, checkpoint: Path) -> None:
    refused(call("inspect", checkpoint, "--device", "abacus"), "abacus")


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    """Places where no result can be put."""
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    return {"below a file": blocked / "deeper" / "goal", "in a system folder": Path("/proc/goal")}


@pytest.mark.parametrize("kind", ["below a file", "in a system folder"])
@pytest.mark.parametrize("option", ["--out", "--html"])
def test_unwritable_output_is_refused_before_the_work(
    call: Call, checkpoint: Path, tmp_path: Path, places: dict[str, Path], kind: str, option: str
) -> None:
    place = places[kind]
    if kind == "in a system folder" and not Path("/proc/self").exists():
        pytest.skip("this system has no /proc")
    shown = call("ablate", checkpoint, option, place)
    refused(shown, f"cannot write {place}")
    assert "load" not in shown.stderr, "the model must not be loaded first"
    assert nothing_left(tmp_path)


def test_output_of_the_wrong_kind(call: Call, checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("in the way")
    refused(call("check", checkpoint, "--out", file), "it is a file, not a directory")
    refused(call("check", checkpoint, "--html", tmp_path), "it is a directory, not a file")
    assert file.read_text() == "in the way"


def test_a_disk_that_fills_up_leaves_nothing(
    call: Call, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import resstream as rs

    out = tmp_path / "out"

    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(rs.Recording, "to_json", full)
    refused(call("record", checkpoint, "--sequences", 2, "--out", out), "No space left on device")
    assert nothing_left(tmp_path)
    assert not out.exists()


def test_weights_that_are_not_finite_are_a_finding(call: Call, copy: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(copy / "model.safetensors")
    weights["model.layers.1.self_attn.o_proj.weight"][:] = float("nan")
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    shown = call("check", copy, "--json")
    assert shown.exit_code == 1
    first = json.loads(shown.stdout)["findings"][0]
    assert (first["layer"], first["write"], first["status"]) == (1, "attn", "confirmed")


def test_a_model_of_several_streams(call: Call, tmp_path: Path) -> None:
    from transformers import Gemma3nForCausalLM, Gemma3nTextConfig

    config = Gemma3nTextConfig(
        vocab_size=64, vocab_size_per_layer_input=64, hidden_size=32,
        hidden_size_per_layer_input=8, intermediate_size=48, num_hidden_layers=5,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16, num_kv_shared_layers=0,
        laurel_rank=4, layer_types=["full_attention"] * 5, activation_sparsity_pattern=[0.0] * 5,
    )  # fmt: skip
    Gemma3nForCausalLM(config).save_pretrained(tmp_path / "several")
    said = "do not hand on one stream [batch, pos, width] (hyper-connections"
    refused(call("check", tmp_path / "several"), said)


def test_an_encoder_decoder(call: Call, tmp_path: Path) -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=50, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path / "t5")
    refused(call("check", tmp_path / "t5"), "encoder-decoder (t5)")


def test_devices_are_not_replaced(call: Call, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    refused(call("check", "demo", "--html", pipe), "it is a device or a pipe, not a file")
    assert pipe.is_fifo()


def test_a_page_does_not_replace_a_result(call: Call, tmp_path: Path) -> None:
    out = tmp_path / "out"
    asked = call("ablate", "demo", "--out", out, "--html", out / "result.json")
    refused(asked, "lies in --out", "report.html")
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--select", "RS101", "--ignore", "RS101"), "no rule is left to check"),
        (("--select", "RS601"), "none of the selected rules (RS601) can be asked without a ref"),
        (("--static", "--select", "RS203"), "(RS203) can be told from weights alone"),
        (("--seed", "-1"), "--seed"),
    ],
)
def test_a_check_that_can_find_nothing(call: Call, options: tuple[str, ...], said: str) -> None:
    refused(call("check", "demo", *options), said)


def test_weights_alone_need_a_checkpoint(call: Call, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("no weights")
    refused(call("check", tmp_path / "text.txt", "--static"), "text.txt is no checkpoint")


def test_a_severity_is_a_number(call: Call, tmp_path: Path) -> None:
    fault = ("--fault", "scale", "--layer", 1, "--write", "mlp", "--severity", "nan")
    refused(
        call("inject", "demo", *fault, "--out", tmp_path / "out"),
        "severity must be a finite number, got nan",
    )
