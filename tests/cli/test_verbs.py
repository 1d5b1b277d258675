"""Each verb does its job: what it prints, what it writes, and how it ends."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import resstream as rs

Call = Callable[..., Any]
SHORT = ("--sequences", 4, "--context", 24)


def as_json(shown: Any) -> dict[str, Any]:
    """What was printed, refusing the NaN and Infinity that only look like JSON."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(shown.stdout, parse_constant=refuse)


def test_inspect_as_json(call: Call, checkpoint: Path) -> None:
    shown = call("inspect", checkpoint, "--json")
    assert shown.exit_code == 0
    found = as_json(shown)
    assert found["schema"] == "resstream.inspect/1"
    assert (found["n_layers"], found["d_model"], found["d_vocab"]) == (3, 32, 64)
    assert found["embed"] == "model.embed_tokens"
    assert found["readout"] == {"norm": "model.norm", "head": "lm_head"}
    assert found["replay_error"] == 0.0
    assert [block["layer"] for block in found["blocks"]] == [0, 1, 2]
    block = found["blocks"][1]
    assert (block["placement"], block["opaque"], block["reason"]) == ("pre", False, None)
    names = [(write["name"], write["module"], write["scale"]) for write in block["writes"]]
    assert names == [
        ("attn", "model.layers.1.self_attn", 1.0),
        ("mlp", "model.layers.1.mlp", 1.0),
    ]
    assert all(write["residue"] < 1e-5 for write in block["writes"])
    assert found["provenance"]["model"] == str(checkpoint)


def test_inspect_as_table(call: Call, checkpoint: Path) -> None:
    shown = call("inspect", checkpoint)
    assert "3 blocks, d_model 32, d_vocab 64" in shown.stdout
    assert "0 of 3 blocks are opaque" in shown.stdout
    assert re.search(r"2\s+pre\s+mlp\s+model\.layers\.2\.mlp", shown.stdout)


def test_inspect_proves_on_a_text(call: Call, demo_copy: Path, tmp_path: Path) -> None:
    text, page = tmp_path / "text.txt", tmp_path / "page.html"
    text.write_text("One day a little girl went to the park. " * 30)
    shown = call("inspect", demo_copy, "--text", text, "--json", "--html", page)
    assert shown.exit_code == 0
    assert as_json(shown)["text_replay_error"] == 0.0
    assert "text.txt" in as_json(shown)["provenance"]["text"]
    assert "8 of 8 blocks and 16 writes are proved." in page.read_text()


def test_inspect_saves_what_it_prints(call: Call, checkpoint: Path, tmp_path: Path) -> None:
    shown = call("inspect", checkpoint, "--json", "--out", tmp_path / "out")
    assert json.loads((tmp_path / "out" / "result.json").read_text()) == as_json(shown)


def test_record(call: Call, checkpoint: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "out", tmp_path / "page.html"
    shown = call("record", checkpoint, *SHORT, "--json", "--out", out, "--html", page)
    assert shown.exit_code == 0
    assert as_json(shown)["schema"] == "resstream.record/1"
    kept = rs.load_result(out)
    assert isinstance(kept, rs.Recording)
    assert kept.n_sequences == 4
    assert kept.n_tokens.sum() == 4 * 24
    assert "<html" in page.read_text()


def test_record_as_table(call: Call, checkpoint: Path) -> None:
    shown = call("record", checkpoint, *SHORT)
    assert re.search(r"layer\s+write\s+write norm\s+relative\s+cosine", shown.stdout)
    assert len(re.findall(r"^\s+\d\s+(?:attn|mlp)", shown.stdout, re.MULTILINE)) == 6


def test_record_keeps_activations(call: Call, checkpoint: Path, tmp_path: Path) -> None:
    from resstream.recording.activations import open_activations

    kept = tmp_path / "kept"
    shown = call("record", checkpoint, *SHORT, "--sites", "blocks.1.attn_out", "--keep", kept)
    assert shown.exit_code == 0, shown.stderr
    assert open_activations(kept).sites == ("blocks.1.hook_attn_out",)


def test_ablate(call: Call, checkpoint: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "out", tmp_path / "page.html"
    shown = call("ablate", checkpoint, *SHORT, "--json", "--out", out, "--html", page)
    assert shown.exit_code == 0
    found = as_json(shown)
    assert found["schema"] == "resstream.ablate/1"
    assert found["base_loss"] > 0
    places = [(effect["layer"], effect["write"]) for effect in found["effects"]]
    assert places == [(layer, write) for layer in range(3) for write in ("attn", "mlp")]
    for effect in found["effects"]:
        assert effect["kind"] == "zero"
        assert effect["ci"][0] <= effect["effect"] <= effect["ci"][1]
        assert effect["n_tokens"] == 4 * 23
    assert isinstance(rs.load_result(out), rs.AblationResult)
    assert "<html" in page.read_text()


def test_ablate_is_what_the_library_says(call: Call, checkpoint: Path) -> None:
    from resstream.stream.texts import read_corpus

    shown = as_json(call("ablate", checkpoint, *SHORT, "--kind", "mean", "--json"))
    model = rs.load(checkpoint)
    corpus = read_corpus(model, None, context=24, max_sequences=4)
    own = rs.ablate(model, corpus, kind="mean")
    assert [effect["effect"] for effect in shown["effects"]] == [x.effect for x in own.effects]


@pytest.mark.parametrize(
    ("choice", "places"),
    [
        (["--layers", "0,2"], [([0], "attn"), ([0], "mlp"), ([2], "attn"), ([2], "mlp")]),
        (["--sites", "blocks.*.mlp_out"], [([0], "mlp"), ([1], "mlp"), ([2], "mlp")]),
        (["--level", "block", "--layers", "1-2"], [([1], "block"), ([2], "block")]),
        (["--group", "0-1", "--group", "2"], [([0, 1], "block"), ([2], "block")]),
    ],
)
def test_ablate_only_some(
    call: Call, checkpoint: Path, choice: list[str], places: list[tuple[list[int], str]]
) -> None:
    found = as_json(call("ablate", checkpoint, *SHORT, *choice, "--json"))
    assert [(effect["layers"], effect["write"]) for effect in found["effects"]] == places


def test_ablate_as_table(call: Call, checkpoint: Path) -> None:
    shown = call("ablate", checkpoint, *SHORT)
    assert "nats per token with all writes in place" in shown.stdout
    assert len(re.findall(r"(?:attn|mlp)\s+zero\s+[+-]\d\.\d{4}", shown.stdout)) == 6


def test_the_seed_decides_what_is_drawn(call: Call, checkpoint: Path) -> None:
    def text_hash(seed: int) -> str:
        shown = call("record", checkpoint, *SHORT, "--json", "--seed", seed)
        return as_json(shown)["provenance"]["text_hash"]

    assert text_hash(1) == text_hash(1) != text_hash(2)


def test_dtype_is_taken(call: Call, checkpoint: Path) -> None:
    found = as_json(call("inspect", checkpoint, "--dtype", "float64", "--json"))
    assert found["provenance"]["dtype"] == "float64"


def test_inject_writes_a_damaged_copy(call: Call, checkpoint: Path, tmp_path: Path) -> None:
    import torch

    out = tmp_path / "damaged"
    fault = ("--fault", "scale", "--layer", 1, "--write", "mlp", "--severity", 8)
    shown = call("inject", checkpoint, *fault, "--out", out, "--json")
    assert shown.exit_code == 0, shown.stderr
    found = as_json(shown)
    assert found["schema"] == "resstream.inject/1"
    assert (found["fault"], found["layer"], found["write"]) == ("scale", 1, "mlp")
    before, after = (rs.load(place).module.state_dict() for place in (checkpoint, out))
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert changed == ["model.layers.1.mlp.down_proj.weight"]
    assert torch.equal(8 * before[changed[0]], after[changed[0]])


def test_inject_says_what_the_fault_costs(call: Call, demo_copy: Path, tmp_path: Path) -> None:
    text, page = tmp_path / "text.txt", tmp_path / "page.html"
    text.write_text("One day a little girl went to the park. " * 30)
    fault = ("--fault", "zero", "--layer", 0, "--write", "mlp", "--out", tmp_path / "out")
    shown = call("inject", demo_copy, *fault, "--text", text, "--html", page, "--json")
    found = as_json(shown)
    assert found["loss_after"] > found["loss_before"] + 0.1
    assert "Damaged: layer 0 mlp" in page.read_text()


def test_inject_takes_a_layer_from_another_model(
    call: Call, checkpoint: Path, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    call("inject", checkpoint, "--fault", "reinit", "--layer", 0, "--write", "mlp", "--out", first)
    shown = call(
        "inject", checkpoint, "--fault", "stale", "--layer", 0, "--other", first, "--out", second
    )
    assert shown.exit_code == 0, shown.stderr
    assert f"layer 0 taken from {first}" in shown.stdout


def test_inject_does_not_write_over_its_model(call: Call, copy: Path) -> None:
    before = (copy / "model.safetensors").read_bytes()
    shown = call(
        "inject", copy, "--fault", "zero", "--layer", 1, "--write", "mlp", "--out", f"{copy}/."
    )
    assert shown.exit_code == 2
    assert "it is the model itself" in shown.stderr
    assert (copy / "model.safetensors").read_bytes() == before


def test_check_names_a_fault_and_exits_with_1(call: Call, checkpoint: Path, tmp_path: Path) -> None:
    damaged, page, out = tmp_path / "damaged", tmp_path / "page.html", tmp_path / "out"
    call("inject", checkpoint, "--fault", "nan", "--layer", 1, "--write", "mlp", "--out", damaged)
    shown = call("check", damaged, "--json", "--html", page, "--out", out)
    assert shown.exit_code == 1, shown.stderr
    found = as_json(shown)
    assert (found["schema"], found["verdict"]) == ("resstream.check/1", "findings")
    first = found["findings"][0]
    assert (first["status"], first["layer"], first["write"]) == ("confirmed", 1, "mlp")
    assert "<html" in page.read_text()
    assert rs.load_result(out).to_dict() == found


@pytest.mark.parametrize(("choice", "expected"), [([], True), (["--no-ablations"], False)])
def test_the_page_of_a_check_has_ablations_where_they_are_quick(
    call: Call, checkpoint: Path, tmp_path: Path, choice: list[str], expected: bool
) -> None:
    page = tmp_path / "page.html"
    shown = call("check", checkpoint, *SHORT, *choice, "--html", page)
    assert shown.exit_code == 0, shown.stderr
    assert ("ablate for the page" in shown.stderr) is expected


def test_check_can_be_told_what_to_leave_out(call: Call, checkpoint: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    call("inject", checkpoint, "--fault", "nan", "--layer", 1, "--write", "mlp", "--out", damaged)
    assert call("check", damaged).exit_code == 1
    assert call("check", damaged, "--ignore", "RS001").exit_code == 0
    assert call("check", damaged, "--select", "RS101").exit_code == 0
    shown = call("check", damaged, "--select", "RS9")
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert shown.stderr.splitlines()[-1].startswith("resstream: error: unknown rule 'RS9'")


def test_check_shows_verdict_and_remedy(call: Call, checkpoint: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    call("inject", checkpoint, "--fault", "nan", "--layer", 2, "--write", "attn", "--out", damaged)
    shown = call("check", damaged)
    assert "verdict: findings" in shown.stdout
    assert re.search(r"error\s+confirmed\s+RS001\s+2\s+attn", shown.stdout)


@pytest.mark.parametrize(
    ("fail_on", "severity", "status", "exit_code"),
    [
        ("warning", "warning", "confirmed", 1),
        ("warning", "error", "confirmed", 1),
        ("warning", "info", "confirmed", 0),
        ("error", "warning", "confirmed", 0),
        ("info", "info", "confirmed", 1),
        ("info", "error", "suspect", 0),
        ("info", "error", "abstained", 0),
    ],
)
def test_what_makes_check_fail(
    call: Call,
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    fail_on: str,
    severity: str,
    status: str,
    exit_code: int,
) -> None:
    from dataclasses import replace

    from resstream.checks import checking
    from resstream.checks.report import Finding

    finding = Finding(
        code="RS999",
        status=status,
        severity=severity,
        layer=1,
        write="mlp",
        site=None,
        statement="it [bold]is[/bold] so",
        evidence=(),
        remedy="none",
    )
    real = checking.check_and_fix

    def report(*arguments: Any, **options: Any) -> tuple[rs.CheckReport, dict[str, Any]]:
        found, weights = real(*arguments, **options)
        return replace(found, findings=(finding,), verdict="findings"), weights

    monkeypatch.setattr(checking, "check_and_fix", report)
    shown = call("check", checkpoint, "--fail-on", fail_on)
    assert shown.exit_code == exit_code
    assert "it [bold]is[/bold] so" in shown.stdout, "a statement is text, not markup"
