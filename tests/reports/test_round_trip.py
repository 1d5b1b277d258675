"""Every public result survives the disk and JSON, NaN and infinities included, and can be shown."""

from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import resstream as rs
from resstream.reports import results
from resstream.reports.page import render_page
from resstream.reports.pages import page_of
from resstream.stream.result import Result
from tests.analysis import families

SPECIAL = (np.nan, np.inf, -np.inf)


@cache
def model() -> rs.StreamModel:
    """Small and random, its readout made decided so that a pair of prompts differs."""
    module = families.make("llama")
    with torch.no_grad():
        module.get_parameter("lm_head.weight").mul_(20)
    return rs.load(module)


def tokens() -> torch.Tensor:
    return families.tokens(6, 10)


def pairs() -> list[dict[str, Any]]:
    clean, corrupted = families.tokens(1, 6)[0].tolist(), families.tokens(1, 6, seed=5)[0].tolist()
    return [{"clean": clean, "corrupted": corrupted, "answer": 5, "wrong": 8}]


def trained() -> rs.TunedLensResult:
    config = rs.TunedLensConfig(n_tokens=40, batch_tokens=20)
    return rs.tuned_lens(model(), tokens(), config=config)[1]


MAKERS: dict[str, Callable[[], Result]] = {
    "resstream.ablate/1": lambda: rs.ablate(model(), tokens()),
    "resstream.attention/1": lambda: rs.attention(model(), tokens()),
    "resstream.attribute/1": lambda: rs.direct_logit_attribution(model(), tokens(), answer=5),
    "resstream.attribution_patch/1": lambda: rs.attribution_patch(
        model(), pairs(), site="resid_pre"
    ),
    "resstream.check/1": lambda: rs.check(model(), tokens()),
    "resstream.gradients/1": lambda: rs.gradients(model(), tokens()),
    "resstream.lens_profile/1": lambda: rs.lens_profile(model(), tokens()),
    "resstream.logit_lens/1": lambda: rs.logit_lens(model(), tokens(), targets=[5]),
    "resstream.patch/1": lambda: rs.patch(model(), pairs(), site="resid_pre"),
    "resstream.path_patch/1": lambda: rs.path_patch(model(), pairs()),
    "resstream.precision/1": lambda: rs.precision_drift(model(), tokens()),
    "resstream.ranks/1": lambda: rs.ranks(model(), tokens(), n_tokens=24),
    "resstream.record/1": lambda: rs.record(model(), tokens()),
    "resstream.similarity/1": lambda: rs.similarity(model(), tokens(), n_tokens=24),
    "resstream.tuned_lens/1": trained,
}


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


def test_every_public_result_is_made_here() -> None:
    assert set(MAKERS) == set(results._KINDS)


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
