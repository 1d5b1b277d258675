"""Every experiment runs at a tiny size, and its verdict follows the numbers."""

import math

import pytest
from train.experiments.verdicts import NEVER_TESTABLE, VERDICTS, Numbers

from resstream.train.experiments.experiment import Experiment, Readings
from resstream.train.experiments.registry import experiments
from resstream.train.experiments.running import gather, run_experiment

ALL = experiments()
BY_NAME = {item.name: item for item in ALL}


def readings(numbers: Numbers) -> Readings:
    return gather([numbers], is_drawn=True)


def test_every_verdict_is_tried_on_numbers() -> None:
    assert set(VERDICTS) | NEVER_TESTABLE == set(BY_NAME)


def test_few_are_not_testable() -> None:
    assert len(NEVER_TESTABLE) <= 6


@pytest.mark.parametrize("name", VERDICTS)
def test_numbers_decide(name: str) -> None:
    holding, refuting = VERDICTS[name]
    judge = BY_NAME[name].judge
    assert judge(readings(holding)).verdict == "holds"
    assert judge(readings(refuting)).verdict == "does not hold here"


@pytest.mark.parametrize("experiment", ALL, ids=lambda item: item.name)
def test_it_runs_and_is_drawn(experiment: Experiment) -> None:
    record = run_experiment(experiment, size="tiny")
    assert len(record.statement) > 40
    assert record.plot().data
    assert all(not math.isnan(item.value) for item in record.measured)
    if experiment.name in NEVER_TESTABLE:
        assert record.verdict == "not testable at this size"


@pytest.mark.parametrize("experiment", ALL, ids=lambda item: item.name)
def test_it_says_what_and_whence(experiment: Experiment) -> None:
    assert experiment.title.endswith("?")
    assert experiment.claim.endswith(".")
    assert all(1 <= row <= 60 for row in experiment.rows)
