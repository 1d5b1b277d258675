"""Statistics that are kept online, against NumPy on all values at once."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from resstream.recording.online import QUANTILES, ChannelStatistics, Summary, TokenStatistics


def summarised(values: np.ndarray, strata: np.ndarray, cuts: list[int]) -> list[Summary]:
    """``values`` ``[metric, row, token]`` taken in piece by piece."""
    statistics = TokenStatistics(*values.shape[:2])
    edges = [0, *sorted(cuts), values.shape[-1]]
    for start, end in itertools.pairwise(edges):
        statistics.update(values[..., start:end], strata[start:end])
    return statistics.summaries()


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n_tokens=st.integers(1, 300),
    cuts=st.lists(st.integers(0, 300), max_size=5),
    offset=st.sampled_from([0.0, 1e6, -1e3]),
)
def test_moments_are_numpys_however_the_text_is_cut(
    seed: int, n_tokens: int, cuts: list[int], offset: float
) -> None:
    rng = np.random.default_rng(seed)
    values = rng.normal(offset, 2.0, (2, 3, n_tokens))
    values[rng.random(values.shape) < 0.1] = np.nan
    values[rng.random(values.shape) < 0.05] = np.inf
    strata = rng.integers(0, 2, n_tokens)
    found = summarised(values, strata, [min(cut, n_tokens) for cut in cuts])
    for metric, row, stratum in np.ndindex(2, 3, 2):
        part = values[metric, row, strata == stratum]
        part = part[np.isfinite(part)]
        summary = found[metric]
        assert summary.count[row, stratum] == len(part)
        if len(part):
            np.testing.assert_allclose(summary.mean[row, stratum], part.mean(), rtol=1e-12)
            np.testing.assert_allclose(
                summary.std[row, stratum], part.std(), rtol=1e-6, atol=1e-9 * abs(offset)
            )
        else:
            assert np.isnan(summary.mean[row, stratum])
            assert np.isnan(summary.quantiles[row, stratum]).all()


@pytest.mark.parametrize("shape", ["normal", "lognormal", "standard_cauchy"])
@pytest.mark.parametrize("n_tokens", [50, 2_000, 60_000])
def test_quantiles_are_within_two_percent_of_their_rank(shape: str, n_tokens: int) -> None:
    values = getattr(np.random.default_rng(0), shape)(size=(1, 1, n_tokens))
    cuts = list(range(1000, n_tokens, 1000))
    (summary,) = summarised(values, np.zeros(n_tokens, dtype=int), cuts)
    ordered = np.sort(values[0, 0].astype(np.float32))
    for level, value in zip(QUANTILES, summary.quantiles[0, 0], strict=True):
        low, high = (np.searchsorted(ordered, value, side) / n_tokens for side in ("left", "right"))
        assert low - 0.02 <= level <= high + 0.02, (level, low, high)
    assert summary.median[0, 0] == summary.quantiles[0, 0, 2]


def test_the_same_text_gives_the_same_quantiles() -> None:
    values = np.random.default_rng(1).lognormal(size=(1, 2, 20_000))
    strata = np.zeros(20_000, dtype=int)
    one, other = (summarised(values, strata, [7_000, 9_000])[0] for _ in range(2))
    np.testing.assert_array_equal(one.quantiles, other.quantiles)


def channel_statistics(rows: torch.Tensor) -> ChannelStatistics:
    """All ``rows`` ``[token, d_model]`` taken in, in two pieces, as body."""
    statistics = ChannelStatistics(1, rows.shape[1])
    for part in rows.split(len(rows) // 2 + 1):
        values = part.unsqueeze(0)
        norms = values.norm(dim=-1).double().numpy()
        channel = values.abs().argmax(-1).numpy()
        statistics.update(0, values, norms, channel, np.zeros(norms.shape, dtype=int))
    return statistics


def test_common_mode_is_one_for_a_bias_and_small_for_noise() -> None:
    bias = torch.randn(1, 32).expand(100, 32)
    assert channel_statistics(bias).common_mode()[0, 0] == pytest.approx(1.0, abs=1e-6)
    noise = torch.randn(1000, 32, generator=torch.Generator().manual_seed(0))
    share = channel_statistics(noise).common_mode()[0, 0]
    mean = noise.double().mean(0)
    assert share == pytest.approx(float(mean @ mean / noise.double().square().sum(1).mean()))
    assert share < 0.003


def test_votes_name_the_channel_that_most_tokens_agree_on() -> None:
    rows = torch.full((10, 6), 0.1)
    rows[:7, 4] = -3.0
    rows[7:, 1] = 100.0  # larger, but in fewer tokens
    statistics = channel_statistics(rows)
    assert statistics.top_channel()[0].tolist() == [4, -1]
    assert statistics.top_channel_votes()[0, 0] == pytest.approx(0.7)
    assert np.isnan(statistics.top_channel_votes()[0, 1])


def test_tokens_that_are_not_finite_are_left_out_of_the_mean() -> None:
    values = torch.ones(1, 3, 4)
    values[0, 1, 2] = torch.nan
    statistics = ChannelStatistics(1, 4)
    norms = values.norm(dim=-1).double().numpy()
    channel = np.zeros((1, 3), dtype=int)
    statistics.update(0, values, norms, channel, np.zeros((1, 3), dtype=int))
    assert statistics.common_mode()[0, 0] == pytest.approx(1.0)
