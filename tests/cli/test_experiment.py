"""Does the verb `experiment` list, run, keep and show?"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from resstream.train.experiments import running
from resstream.train.experiments.registry import experiments

Call = Callable[..., Any]
CHEAP = ("initialised-twice", "gradient-norm-snippet")


def test_a_list_names_all_with_their_claims(call: Call) -> None:
    shown = call("experiment", "--list", "--json")
    found = json.loads(shown.stdout)
    assert shown.exit_code == 0
    assert found["schema"] == "resstream.experiment_list/1"
    assert [item["name"] for item in found["experiments"]] == [item.name for item in experiments()]
    assert "rank-collapse-causal" in call("experiment", "--list").stdout


def test_one_is_run_and_judged(call: Call) -> None:
    shown = call("experiment", CHEAP[0], "--quick", "--json")
    assert shown.exit_code == 0
    found = json.loads(shown.stdout)
    assert found["schema"] == "resstream.experiment/1"
    (record,) = found["experiments"]
    assert (record["name"], record["size"]) == (CHEAP[0], "quick")
    assert record["verdict"] == "does not hold here"
    assert record["measured"][0]["n_seeds"] == 3


def test_a_person_reads_claim_source_verdict_and_numbers(call: Call) -> None:
    shown = call("experiment", CHEAP[1], "--quick").stdout
    for part in (
        "claim    total +=",
        "source   Tutorials",
        "verdict  does not hold here",
        "fails:",
    ):
        assert part in shown


def test_what_is_done_is_kept_and_not_done_again(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, page = tmp_path / "out", tmp_path / "page.html"
    first = call("experiment", *CHEAP, "--quick", "--out", out, "--html", page)
    assert first.exit_code == 0
    assert {path.name for path in out.iterdir()} >= {*CHEAP, "result.json", "report.html"}
    assert "Do two initialisations of one matrix add up?" in page.read_text(encoding="utf-8")

    def fail(*given: object) -> None:
        raise AssertionError("it was run again")

    monkeypatch.setattr(running, "_measure", fail)
    assert call("experiment", *CHEAP, "--quick", "--out", out).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name an experiment, or give --all or --list"),
        (("initialised-twise",), "unknown experiment 'initialised-twise'; did you mean"),
        ((CHEAP[0], "--html", "/"), "is a directory, not a file"),
    ],
)
def test_refusals_are_one_line(call: Call, arguments: tuple[str, ...], message: str) -> None:
    shown = call("experiment", *arguments)
    assert shown.exit_code == 2
    assert message in shown.stderr
    assert "Traceback" not in shown.stderr


def test_an_interruption_is_one_line(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "_measure", stop)
    shown = call("experiment", CHEAP[0], "--quick")
    assert shown.exit_code == 130
    assert "resstream: interrupted" in shown.stderr
