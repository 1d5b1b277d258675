"""Several results on one page, and what a run's directory holds."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Call


@pytest.fixture
def runs(call: "Call", checkpoint: Path, tmp_path: Path) -> list[Path]:
    """Two runs on one small model."""
    made: list[Path] = []
    for verb, options in (("record", ()), ("similarity", ("--tokens", 24))):
        out = tmp_path / verb
        small = ["--sequences", 4, "--context", 16, "--out", out]
        assert call(verb, checkpoint, *small, *options).exit_code == 0
        made.append(out)
    return made


def test_a_run_is_whole(runs: list[Path], checkpoint: Path) -> None:
    names = {path.name for path in runs[1].iterdir()}
    assert names == {
        "arrays.safetensors", "report.html", "result.json", "run.json", "table.csv",
        "table.parquet",
    }  # fmt: skip
    config = json.loads((runs[1] / "run.json").read_text())
    assert (config["schema"], config["verb"]) == ("resstream.run/1", "similarity")
    asked = config["options"]
    assert (asked["model"], asked["n_tokens"], asked["seed"]) == (str(checkpoint), 24, 0)
    saved = json.loads((runs[1] / "result.json").read_text())
    assert saved["schema"] == "resstream.similarity/1"
    assert {"model_hash", "text_hash", "versions"} <= set(saved["provenance"])


def test_one_page_of_several_results(call: "Call", runs: list[Path], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    ended = call("report", *runs, "--html", page, "--json")
    assert ended.exit_code == 0, ended.stderr
    printed = json.loads(ended.stdout)
    assert printed["schema"] == "resstream.report/1"
    assert [run["result"] for run in printed["runs"]] == [
        "resstream.record/1",
        "resstream.similarity/1",
    ]
    text = page.read_text("utf-8")
    # Summary first, then the sections of each, in the order given.
    places = [
        text.index(what)
        for what in (
            "2 results on 1 model",
            'href="#run-2"',
            'id="run-1"',
            "How does the stream grow?",
            'id="run-2"',
            "Which depths point the same way?",
        )
    ]
    assert places == sorted(places)
    assert text.count("Plotly.react") >= 1
    assert len(text) < 6_000_000


def test_a_summary_on_the_terminal(call: "Call", runs: list[Path]) -> None:
    ended = call("report", *runs)
    assert ended.exit_code == 0, ended.stderr
    assert "2 results on 1 model" in ended.stdout
    assert "moves the stream least" in ended.stdout


def test_what_is_no_run_is_refused(call: "Call", runs: list[Path], tmp_path: Path) -> None:
    ended = call("report", runs[0], tmp_path / "nowhere", "--html", tmp_path / "page.html")
    assert ended.exit_code == 2
    assert "no result in" in ended.stderr
    assert not (tmp_path / "page.html").exists()
