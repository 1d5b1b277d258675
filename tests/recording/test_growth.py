"""The growth factor of the stream."""

import numpy as np
import pytest

from resstream.recording.growth import fit_growth


def sites(n_layers: int) -> list[str]:
    points = [
        f"blocks.{layer}.hook_resid_{at}" for layer in range(n_layers) for at in ("pre", "mid")
    ]
    return [*points, f"blocks.{n_layers - 1}.hook_resid_post"]


def test_an_exponential_is_found_beside_odd_ends() -> None:
    median = 3.0 * 1.07 ** (np.arange(17) / 2)
    median[:4] = 0.1  # the first two blocks
    median[-1] = 1e4  # behind the last
    growth, r2 = fit_growth(sites(8), median)
    assert growth == pytest.approx(1.07)
    assert r2 == pytest.approx(1.0)


def test_points_between_writes_do_not_count() -> None:
    median = 2.0 ** (np.arange(17) // 2)
    median[1::2] = 77.0
    assert fit_growth(sites(8), median)[0] == pytest.approx(2.0)


def test_noise_lowers_r2() -> None:
    rng = np.random.default_rng(0)
    _, r2 = fit_growth(sites(30), np.exp(rng.normal(size=61)))
    assert r2 < 0.2


@pytest.mark.parametrize("n_layers", [1, 4])
def test_too_few_blocks_give_no_number(n_layers: int) -> None:
    growth, r2 = fit_growth(sites(n_layers), np.ones(2 * n_layers + 1))
    assert np.isnan(growth)
    assert np.isnan(r2)


def test_what_is_not_finite_is_left_out() -> None:
    median = 1.5 ** (np.arange(17) / 2)
    median[8] = np.nan
    median[10] = np.inf
    assert fit_growth(sites(8), median)[0] == pytest.approx(1.5)
