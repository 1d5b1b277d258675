"""What the README shows works, and what it leaves out does not exist."""

import re
import tomllib
from pathlib import Path

import pytest

from resstream_cli.app import app

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()
VERBS = sorted(getattr(command.callback, "__name__", "") for command in app.registered_commands)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def test_every_verb_has_its_row() -> None:
    assert sorted(re.findall(r"^\| `resstream (\w+) [^`]+` \|", TEXT, re.MULTILINE)) == VERBS


def test_every_verb_is_in_the_import_contract() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    (modules,) = (contract["modules"] for contract in contracts if contract["id"] == "verbs")
    assert sorted(modules) == [f"resstream_cli.{verb}" for verb in VERBS]


def test_the_two_commands_are_one_line_each() -> None:
    """`.ci/run` takes them from here and runs them as they stand."""
    run, test = blocks("console")[:2]
    assert run.count("\n") == test.count("\n") == 1
    for command in (run, test):
        assert command.startswith("python3 -m venv .venv && . .venv/bin/activate && pip install ")
    assert run.endswith("&& resstream check demo --html report.html\n")


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", TEXT):
        if "://" not in target:
            assert (ROOT / target).exists(), target


def test_the_python_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = blocks("python")
    names: dict[str, object] = {}
    exec(example, names)
    assert names["report"].verdict == "healthy"  # type: ignore[attr-defined]
    assert (tmp_path / "results" / "result.json").exists()
