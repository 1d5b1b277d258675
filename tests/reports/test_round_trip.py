"""Every public result survives the disk and JSON, NaN and infinities included, and can be shown."""

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

import resstream as rs
from resstream.reports import results
from resstream.reports.page import render_page
from resstream.reports.pages import page_of
from resstream.stream.result import Result
from tests.reports.every_result import MAKERS

MADE_ELSEWHERE = {"resstream.experiment/1", "resstream.monitor/1", "resstream.train/1"}
"""A training run is needed; see tests/train."""

SPECIAL = (np.nan, np.inf, -np.inf)


def spoilt(result: Result) -> Result:
    """`result` with NaN and infinities at the start of every array of floats."""
    changed: dict[str, np.ndarray] = {}
    for field in fields(result):
        value = getattr(result, field.name)
        if isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.size:
            changed[field.name] = value.copy()
            flat = changed[field.name].reshape(-1)
            flat[: len(SPECIAL)] = SPECIAL[: flat.size]
    return replace(result, **changed)


def test_every_public_result_is_made_here_or_by_its_own_tests() -> None:
    assert set(MAKERS) | MADE_ELSEWHERE == set(results._KINDS)


@pytest.mark.parametrize("schema", MAKERS)
def test_round_trip(schema: str, tmp_path: Path) -> None:
    result = spoilt(MAKERS[schema]())
    assert result.schema == schema
    again = rs.load_result(result.save(tmp_path / "run"))
    assert type(again) is type(result)
    assert again.to_json() == result.to_json() == type(result).from_json(result.to_json()).to_json()
    for field in fields(result):
        was, came = getattr(result, field.name), getattr(again, field.name)
        if isinstance(was, np.ndarray):
            assert came.dtype.kind == was.dtype.kind, field.name
            np.testing.assert_array_equal(came, was, err_msg=field.name)
    assert again.provenance == result.provenance
    assert list(again.to_dataframe()) == list(result.to_dataframe())


@pytest.mark.parametrize("schema", MAKERS)
def test_shown_as_figure_in_a_notebook_and_on_a_page(schema: str) -> None:
    result = MAKERS[schema]()
    assert result.plot().to_plotly_json()["data"]
    shown = result._repr_html_()
    assert "Plotly.newPlot" in shown
    assert "<table" in shown
    assert page_of(result).sections
    assert 'class="figure"' in render_page(page_of(result))


@pytest.mark.parametrize("schema", MAKERS)
def test_values_that_are_not_finite_can_be_shown(schema: str) -> None:
    result = spoilt(MAKERS[schema]())
    assert "<table" in result._repr_html_()
    assert render_page(page_of(result))
