"""Are numbers gathered, kept and found again, and are names and records what they should be?"""

import math
from pathlib import Path

import pytest
import torch

from resstream.errors import ConfigError
from resstream.reports.results import load_result
from resstream.train.experiments import running
from resstream.train.experiments.experiment import (
    Chart,
    Experiment,
    Judgement,
    Key,
    Readings,
    Size,
    judged,
    pick,
)
from resstream.train.experiments.registry import experiments, find_experiments, register
from resstream.train.experiments.report import ExperimentReport
from resstream.train.experiments.running import gather, run_experiment, run_experiments

CALLS: list[int] = []


def measure(size: Size) -> dict[Key, float]:
    CALLS.append(int(torch.randint(1 << 30, ())))
    return {"drawn": float(torch.rand(())), ("at", 2): pick(size, tiny=1.0, quick=2.0, full=3.0)}


def judge(readings: Readings) -> Judgement:
    return judged(readings.value("drawn") < 2, "a number was drawn")


def made(name: str = "toy", **changes: object) -> Experiment:
    settings = {
        "title": "Is it?", "claim": "It is.", "source": "nobody", "rows": (1,), "method": "drawn",
        "measure": measure, "judge": judge, "chart": Chart(value_title="value"), "seeds": 3,
    }  # fmt: skip
    return Experiment(name=name, **{**settings, **changes})  # type: ignore[arg-type]


def test_gather_takes_median_and_range() -> None:
    readings = gather([{"a": value} for value in (3.0, 1.0, 9.0)], is_drawn=True)
    item = readings.at("a")
    assert (item.value, item.low, item.high, item.n_seeds) == (3.0, 1.0, 9.0, 3)


def test_nan_is_beyond_all_bounds() -> None:
    assert gather([{"a": math.nan}, {"a": 1.0}], is_drawn=True).high("a") == math.inf


def test_what_is_not_drawn_has_no_seeds() -> None:
    assert gather([{"a": 1.0}], is_drawn=False).at("a").n_seeds == 0


def test_readings_know_their_places() -> None:
    readings = gather([{("a", 8): 2.0, ("a", 3): 1.0, "a": 0.0}], is_drawn=True)
    assert readings.places("a") == [3.0, 8.0]
    assert readings.line("a") == [1.0, 2.0]
    with pytest.raises(KeyError):
        readings.at("b")


def test_seeds_are_set_and_the_random_state_is_left_alone() -> None:
    before = torch.get_rng_state()
    first = run_experiment(made(), size="tiny", seed=5)
    assert torch.equal(before, torch.get_rng_state())
    again = run_experiment(made(), size="tiny", seed=5)
    assert first.measured == again.measured
    assert first.measured != run_experiment(made(), size="tiny", seed=6).measured


@pytest.mark.parametrize(("size", "runs"), [("quick", 3), ("full", 6)])
def test_full_runs_have_more_seeds(size: Size, runs: int) -> None:
    CALLS.clear()
    run_experiment(made(), size=size)
    assert len(set(CALLS)) == runs


def test_finished_experiments_are_not_run_again(tmp_path: Path) -> None:
    chosen = (made("one"), made("two"))
    first = run_experiments(chosen, size="quick", out=tmp_path)
    CALLS.clear()
    told: list[str] = []
    again = run_experiments(
        chosen, size="quick", out=tmp_path, told=lambda name, done, total: told.append(name)
    )
    assert CALLS == []
    assert told == ["one", "two"]
    assert again.experiments == first.experiments


@pytest.mark.parametrize("change", ["seed", "size", "code", "damage"])
def test_what_was_asked_otherwise_is_run_again(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_experiments([made()], size="tiny", out=tmp_path)
    CALLS.clear()
    if change == "code":
        monkeypatch.setattr(running, "recipe_of", lambda experiment: "other")
    if change == "damage":
        (tmp_path / "toy" / "result.json").write_text('{"schema": "resstream.experiment/1"}')
    size: Size = "quick" if change == "size" else "tiny"
    run_experiments([made()], size=size, seed=int(change == "seed"), out=tmp_path)
    assert len(CALLS) == 3


def test_what_was_finished_before_an_interruption_is_there(tmp_path: Path) -> None:
    def stop(size: Size) -> dict[Key, float]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiments([made("one"), made("two", measure=stop)], size="tiny", out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_a_report_comes_back_as_it_was(tmp_path: Path) -> None:
    report = run_experiments([made()], size="tiny")
    assert ExperimentReport.from_json(report.to_json()) == report
    report.save(tmp_path)
    assert load_result(tmp_path) == report
    assert list(report.to_dataframe()["quantity"]) == ["drawn", "at"]


def test_verdicts_are_counted() -> None:
    wrong = made("wrong", judge=lambda readings: judged(False, "no"))
    report = run_experiments([made(), wrong], size="tiny")
    assert list(report.verdicts().values()) == [1, 1, 0]
    assert report.plot().data


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown experiment 'gradient-identiti'.*gradient-id"):
        find_experiments(["gradient-identiti"])


def test_names_are_found_in_order_and_once() -> None:
    found = find_experiments(["pollution", "degradation", "pollution"])
    assert [item.name for item in found] == ["pollution", "degradation"]


def test_a_name_is_taken_once() -> None:
    known = experiments()[0]
    with pytest.raises(ConfigError, match="two experiments of the name"):
        register(made(known.name))


@pytest.mark.parametrize("key", ["title", "claim", "source", "method"])
def test_an_experiment_says_what_it_tries(key: str) -> None:
    with pytest.raises(ConfigError, match=f"must have a {key}"):
        made(**{key: ""})


def test_an_experiment_belongs_to_a_row() -> None:
    with pytest.raises(ConfigError, match="must belong to a row"):
        made(rows=())
