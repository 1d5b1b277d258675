"""Is the table of the mission whole, and does everything exist that it names?"""

import ast
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.mission.row import Row
from benchmarks.mission.table import DOCUMENT, ROWS, read_verdicts, render, tried_by
from resstream.train.experiments.registry import experiments

TESTS = Path(__file__).parents[2]
N_ROWS = 60


@cache
def functions(path: str) -> set[str]:
    tree = ast.parse((TESTS / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_no_row_is_missing() -> None:
    assert [row.number for row in ROWS] == list(range(1, N_ROWS + 1))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row.number))
def test_what_a_row_names_exists(row: Row) -> None:
    for place in row.made_by:
        module, _, name = place.partition(":")
        assert hasattr(import_module(f"resstream.{module}"), name), place
    for place in row.tests:
        path, _, name = place.partition("::")
        assert name in functions(path), place


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row.number))
def test_a_row_is_made_tested_and_tried_or_says_why_not(row: Row) -> None:
    assert row.tests
    assert row.made_by or row.why
    assert tried_by(row) or row.why.startswith("no experiment: ")


def test_every_experiment_is_in_the_table() -> None:
    assert {name for row in ROWS for name in tried_by(row)} == {item.name for item in experiments()}


def test_the_document_is_what_the_command_writes() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    verdicts = read_verdicts(text)
    assert text == render(verdicts), "run `python -m benchmarks.mission`"
    assert set(verdicts) == {item.name for item in experiments()}, "run it with new results"
