"""The verb `patch`: what it prints, writes and refuses."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """Token ids, because the checkpoint has no tokenizer."""
    path = tmp_path / "pairs.json"
    row = {"clean": [3, 4, 5, 6], "corrupted": [3, 7, 5, 6], "answer": 8, "wrong": 9}
    path.write_text(json.dumps([row]))
    return path


def test_json_is_the_contract(call: Call, checkpoint: Path, pairs: Path) -> None:
    ended = call("patch", checkpoint, "--pairs", pairs, "--json")
    assert ended.exit_code == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["schema"] == "resstream.patch/1"
    assert len(found["effects"]) == 3
    assert len(found["effects"][0]) == 4
    assert found["computed"] + found["skipped"] == 12
    assert found["tokens"] == ["3", "4", "5", "6"]


def test_table_and_files(call: Call, checkpoint: Path, pairs: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "out", tmp_path / "page.html"
    ended = call("patch", checkpoint, "--pairs", pairs, "--out", out, "--html", page)
    assert ended.exit_code == 0, ended.stderr
    assert "suffixes behind the base run" in ended.stdout
    assert "peak resident memory" in ended.stderr
    assert (out / "result.json").is_file()
    assert not (out / "unfinished").exists()
    assert "Where does it lie?" in page.read_text("utf-8")


def test_one_pair_has_no_interval(
    call: Call, checkpoint: Path, pairs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    one = call("patch", checkpoint, "--pairs", pairs)
    assert one.exit_code == 0, one.stderr
    assert "effect" in one.stdout
    assert "95% from" not in one.stdout
    (row,) = json.loads(pairs.read_text())
    pairs.write_text(json.dumps([row, row | {"corrupted": [3, 9, 5, 6]}]))
    assert "95% from" in call("patch", checkpoint, "--pairs", pairs).stdout


def test_plan_runs_nothing(call: Call, checkpoint: Path, pairs: Path) -> None:
    ended = call("patch", checkpoint, "--pairs", pairs, "--plan", "--json")
    plan = json.loads(ended.stdout)
    assert plan["schema"] == "resstream.patch_plan/1"
    assert plan["plan"]["variants"] == 12
    assert plan["plan"]["computed"] == 9
    assert plan["plan"]["naive_layer_tokens"] == 12 * 3 * 4
    assert "as whole forwards 144" in call("patch", checkpoint, "--pairs", pairs, "--plan").stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--clean", "a"], "needs --clean and --corrupted"),
        (["--pairs", "PAIRS", "--answer", "x"], "--pairs excludes"),
        (["--pairs", "PAIRS", "--resume"], "--resume needs --out"),
        (["--pairs", "PAIRS", "--memory", "much"], "memory must be a size"),
        (["--pairs", "PAIRS", "--layers", "9"], "layer must be in 0..2"),
        (["--pairs", "nowhere.json"], "cannot read nowhere.json"),
        (["--clean", "a", "--corrupted", "b"], "has no tokenizer"),
    ],
)
def test_refusals(call: Call, checkpoint: Path, pairs: Path, options: list[str], said: str) -> None:
    filled = [str(pairs) if option == "PAIRS" else option for option in options]
    ended = call("patch", checkpoint, *filled)
    assert ended.exit_code == 2
    assert said in ended.stderr
    assert ended.stdout == ""
