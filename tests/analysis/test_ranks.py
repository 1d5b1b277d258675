"""Ranks: known values, laws, and outliers that were put in on purpose."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import resstream as rs
from resstream.analysis.ranks import (
    RankResult,
    anisotropy,
    effective_rank,
    participation_ratio,
    ranks,
)
from tests.analysis import families


@settings(deadline=None, max_examples=40)
@given(count=st.integers(1, 20), size=st.floats(1e-3, 1e3), zeros=st.integers(0, 5))
def test_equal_directions_are_counted(count, size, zeros):
    values = torch.tensor([size] * count + [0.0] * zeros, dtype=torch.float64)
    assert effective_rank(values) == pytest.approx(count)
    assert participation_ratio(values) == pytest.approx(count)


def test_nothing_has_no_rank():
    assert effective_rank(torch.zeros(3)) == 0
    assert participation_ratio(torch.zeros(3)) == 0


def test_anisotropy_is_the_mean_over_pairs_of_different_sequences():
    stream = torch.randn(12, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    sequence = np.array([0, 0, 0, 4, 4, 4, 7, 7, 7, 9, 9, 9])
    unit = stream / stream.norm(dim=-1, keepdim=True)
    pairs = [
        float(unit[i] @ unit[j]) for i in range(12) for j in range(12) if sequence[i] != sequence[j]
    ]
    assert anisotropy(stream, sequence) == pytest.approx(np.mean(pairs))
    assert np.isnan(anisotropy(stream, np.zeros(12, dtype=int)))


def test_a_massive_channel_is_found_where_it_was_made():
    module = families.make("llama")
    model, tokens = rs.load(module), families.tokens(6, 16)

    def spike(value):
        changed = value.clone()
        changed[:, 0, 7] = 5e4
        return changed

    with model.hooked({"blocks.1.mlp_out": spike}):
        result = ranks(model, tokens, n_tokens=48)
    (found,) = [item for item in result.massive if item.channel == 7]
    assert found.point in ("L1", "L2")
    assert found.n_tokens == 6
    assert found.value == pytest.approx(5e4, rel=0.01)
    assert result.channel_share[2, 1] > 0.99
    assert result.channel_share[2, 0] < 0.9
    assert result.participation_ratio[2, 1] < result.participation_ratio[2, 0]
    assert ranks(rs.load(module), tokens, n_tokens=48).massive == ()


def test_constant_writes_lower_nothing_but_raise_anisotropy():
    model, tokens = rs.load(families.make("llama")), families.tokens(6, 16)
    before = ranks(model, tokens, n_tokens=48)
    shift = 10 * torch.ones(32)
    with model.hooked({"blocks.2.mlp_out": lambda value: value + shift}):
        after = ranks(model, tokens, n_tokens=48)
    assert after.effective_rank[-1, 0] == pytest.approx(before.effective_rank[-1, 0], rel=1e-3)
    assert after.anisotropy[-1, 0] > 0.9 > before.anisotropy[-1, 0]
    assert after.anisotropy_centred[-1, 0] < 0.1


def test_round_trip():
    result = ranks(rs.load(families.make("opt")), families.tokens(1, 20), n_tokens=12)
    again = RankResult.from_json(result.to_json())
    assert np.isnan(result.anisotropy).all()  # one sequence
    np.testing.assert_array_equal(again.anisotropy, result.anisotropy)
    assert again.massive == result.massive
    assert len(result.to_dataframe()) == 4 * 2
    assert result.plot().data
