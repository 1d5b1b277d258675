"""What `check` and its sister verbs do with their options, on a small random checkpoint."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]
SMALL = ("--sequences", 6, "--context", 32)


@pytest.fixture
def broken(call: Call, checkpoint: Path, tmp_path: Path) -> Path:
    """The checkpoint with an even attention in layer 1."""
    place = tmp_path / "broken"
    fault = ("--fault", "uniform_attention", "--layer", 1, "--write", "attn")
    assert call("inject", checkpoint, *fault, "--out", place).exit_code == 0
    return place


def test_rules_and_explain(call: Call) -> None:
    listed = json.loads(call("rules", "--json").stdout)
    assert listed["schema"] == "resstream.rules/1"
    assert {"RS001", "RS102", "RS601"} <= {rule["code"] for rule in listed["rules"]}
    shown = call("explain", "rs102")
    assert shown.exit_code == 0
    assert "False-alarm traps" in shown.stdout
    assert json.loads(call("explain", "RS102", "--json").stdout)["name"] == "faint write"
    refused = call("explain", "RS1")
    assert refused.exit_code == 2
    assert "unknown rule 'RS1'; there are RS000" in refused.stderr


def test_weights_alone(call: Call, broken: Path, checkpoint: Path) -> None:
    report = json.loads(call("check", broken, "--static", "--json").stdout)
    assert report["schema"] == "resstream.check/1"
    (finding,) = report["findings"]
    assert (finding["code"], finding["layer"], finding["write"]) == ("RS401", 1, "attn")
    assert call("check", broken, "--static").exit_code == 1
    assert call("check", broken, "--static", "--ignore", "RS4").exit_code == 0
    assert call("check", checkpoint, "--static").exit_code == 0


@pytest.mark.parametrize("option", ["--reference", "--text", "--export-fix", "--html"])
def test_static_refuses_what_needs_a_run(call: Call, broken: Path, option: str) -> None:
    refused = call("check", broken, "--static", option, broken / "x")
    assert refused.exit_code == 2
    assert f"{option} needs a run of the model" in refused.stderr


def test_unknown_rules_are_refused_before_anything_is_loaded(call: Call) -> None:
    refused = call("check", "no-such-model", "--select", "RS9")
    assert refused.exit_code == 2
    assert "unknown rule 'RS9'" in refused.stderr


def test_a_baseline_accepts_what_was_found(call: Call, broken: Path, tmp_path: Path) -> None:
    file = tmp_path / "accepted.json"
    assert call("check", broken, "--static", "--write-baseline", file).exit_code == 0
    accepted = call("check", broken, "--static", "--baseline", file, "--json")
    assert accepted.exit_code == 0
    report = json.loads(accepted.stdout)
    assert report["verdict"] == "healthy"
    assert [finding["code"] for finding in report["accepted"]] == ["RS401"]


def test_settings_of_the_project_count(
    call: Call, broken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.resstream.check]\nignore = ["RS401"]\n')
    monkeypatch.chdir(tmp_path)
    assert call("check", broken, "--static").exit_code == 0
    assert call("check", broken, "--static", "--ignore", "RS406").exit_code == 1


def test_a_reference_names_the_layer(call: Call, broken: Path, checkpoint: Path) -> None:
    options = ("--reference", checkpoint, "--no-remedies", "--json")
    ended = call("check", broken, *SMALL, *options)
    assert ended.exit_code == 1
    findings = json.loads(ended.stdout)["findings"]
    (differs,) = [each for each in findings if each["code"].startswith("RS6")]
    assert (differs["layer"], differs["write"]) == (1, "attn")
    assert "q_proj" in differs["statement"]


def test_compare_shows_the_changed_block(call: Call, broken: Path, checkpoint: Path) -> None:
    result = json.loads(call("compare", broken, checkpoint, *SMALL, "--json").stdout)
    assert result["schema"] == "resstream.compare/1"
    assert [(item["layer"], item["write"]) for item in result["differences"]] == [(1, "attn")]
    assert result["first_divergence"] == "blocks.1.hook_attn_out"
    assert "layer" in call("compare", broken, checkpoint, *SMALL).stdout
    same = call("compare", checkpoint, checkpoint, *SMALL)
    assert "all weights are the same" in same.stdout


def test_bisect_finds_the_first_bad_one(call: Call, broken: Path, checkpoint: Path) -> None:
    ended = call("bisect", checkpoint, checkpoint, broken, broken, *SMALL, "--json")
    assert ended.exit_code == 1
    found = json.loads(ended.stdout)
    assert found["schema"] == "resstream.bisect/1"
    assert (found["first_bad"], found["last_good"]) == (str(broken), str(checkpoint))
    alone = call("bisect", checkpoint, *SMALL)
    assert alone.exit_code == 2
    assert "at least two checkpoints" in alone.stderr


def test_nothing_to_export_is_an_error(call: Call, checkpoint: Path, tmp_path: Path) -> None:
    refused = call("check", checkpoint, *SMALL, "--export-fix", tmp_path / "fixed")
    assert refused.exit_code == 2
    assert "no fix to export" in refused.stderr
    assert "verdict" in refused.stdout  # what was found is not lost
    assert not (tmp_path / "fixed").exists()


def test_a_copy_is_not_written_over_a_checkpoint(call: Call, checkpoint: Path) -> None:
    before = (checkpoint / "config.json").read_bytes()
    refused = call("check", checkpoint, *SMALL, "--export-fix", checkpoint)
    assert refused.exit_code == 2
    assert "holds a checkpoint already" in refused.stderr
    assert "verdict" not in refused.stdout  # before any work
    assert (checkpoint / "config.json").read_bytes() == before


def test_a_fix_in_whole_layers_is_a_recipe(call: Call, demo_copy: Path, tmp_path: Path) -> None:
    import yaml

    loud, recipe = tmp_path / "loud", tmp_path / "fix.yaml"
    fault = ("--fault", "scale", "--severity", 24, "--layer", 4, "--write", "mlp")
    assert call("inject", demo_copy, *fault, "--out", loud).exit_code == 0
    options = ("--reference", demo_copy, "--select", "RS601", "--export-fix", recipe)
    ended = call("check", loud, "--sequences", 16, *options)
    assert ended.exit_code == 1, ended.output
    assert "slices for mergekit" in ended.stderr
    parts = [source for part in yaml.safe_load(recipe.read_text())["slices"]
             for source in part["sources"]]  # fmt: skip
    assert [(Path(part["model"]), part["layer_range"]) for part in parts] == [
        (loud, [0, 4]), (demo_copy, [4, 5]), (loud, [5, 8]),
    ]  # fmt: skip


def test_a_fix_of_a_part_is_no_recipe(call: Call, demo_copy: Path, tmp_path: Path) -> None:
    loud, recipe = tmp_path / "loud", tmp_path / "fix.yaml"
    fault = ("--fault", "scale", "--severity", 24, "--layer", 4, "--write", "mlp")
    assert call("inject", demo_copy, *fault, "--out", loud).exit_code == 0
    options = ("--sequences", 16, "--select", "RS201", "--export-fix", recipe)
    refused = call("check", loud, *options)
    assert refused.exit_code == 2
    assert "this fix changes a part of layer 4" in refused.stderr
    assert not recipe.exists()
