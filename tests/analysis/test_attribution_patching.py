"""First-order estimates of patching: right to first order, and no more."""

from typing import Any

import numpy as np
import pytest
import torch

import resstream as rs
from resstream.analysis.attribution_patching import recall
from resstream.errors import ConfigError
from tests.analysis import families

SITES = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out", "head_out")


@pytest.fixture(scope="module")
def model() -> rs.StreamModel:
    return rs.load(families.make("llama").double())


@pytest.fixture(scope="module")
def alike() -> rs.StreamModel:
    """Token 4 is almost token 3, so that putting one for the other is a small change."""
    module = families.make("llama").double()
    with torch.no_grad():
        embedding = module.get_input_embeddings().weight
        embedding[4] = embedding[3] + 1e-4 * torch.randn(embedding.shape[1], dtype=torch.float64)
    return rs.load(module)


PAIR = {"clean": [7, 3, 8, 9, 11], "corrupted": [7, 4, 8, 9, 11], "answer": 5, "wrong": 9}


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("metric", ["logit_diff", "probability"])
def test_small_changes_are_estimated_well(alike: rs.StreamModel, site: Any, metric: Any) -> None:
    exact = rs.patch(alike, PAIR, site=site, metric=metric).effects
    estimate = rs.attribution_patch(alike, PAIR, site=site, metric=metric).estimates
    assert np.abs(exact).max() > 0
    assert np.abs(estimate - exact).max() < 1e-2 * np.abs(exact).max()


def test_an_effect_of_no_change_is_estimated_as_none(model: rs.StreamModel) -> None:
    estimate = rs.attribution_patch(model, PAIR).estimates
    assert not estimate[:, 0].any()
    assert estimate[:, 1].any()


def test_grad_drop_gives_sizes_and_leaves_out_a_layer_each_time(model: rs.StreamModel) -> None:
    plain = rs.attribution_patch(model, PAIR, site="attn_out")
    dropped = rs.attribution_patch(model, PAIR, site="attn_out", grad_drop=True)
    assert (dropped.estimates >= 0).all()
    # Behind the last write the gradient meets no other: only dropping its own layer matters.
    last_mlp = rs.attribution_patch(model, PAIR, site="mlp_out", grad_drop=True)
    wanted = np.abs(rs.attribution_patch(model, PAIR, site="mlp_out").estimates[-1])
    assert np.allclose(last_mlp.estimates[-1], wanted)
    assert dropped.estimates.shape == plain.estimates.shape


def test_recall_counts_the_common_top() -> None:
    exact = np.array([[3.0, -2.0], [1.0, np.nan]])
    assert recall(exact, exact, 2) == 1.0
    assert recall(np.array([[0.0, 5.0], [4.0, 9.0]]), exact, 2) == 0.5
    assert np.isnan(recall(exact, exact * np.nan, 2))


def test_a_rank_has_no_gradient(model: rs.StreamModel) -> None:
    with pytest.raises(ConfigError, match="must have a gradient"):
        rs.attribution_patch(model, PAIR, metric="rank")


def test_the_model_is_left_as_it_was(model: rs.StreamModel) -> None:
    rs.attribution_patch(model, PAIR, grad_drop=True)
    assert all(parameter.grad is None for parameter in model.module.parameters())
    assert not any(
        part._forward_hooks or part._forward_pre_hooks for part in model.module.modules()
    )
