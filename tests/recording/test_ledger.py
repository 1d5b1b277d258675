"""The sums and metrics of one write, against a reference that takes one token at a time."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from resstream.recording.ledger import (
    METRICS,
    WriteSums,
    count_non_finite,
    row_dots,
    row_norms,
    widen,
    write_metrics,
)
from tests.recording.reference import token_metrics


def measured(
    write: Tensor, stream: Tensor, final: Tensor, branch: Tensor | None = None
) -> dict[str, np.ndarray]:
    """``metric -> [batch, pos]`` for one write, by the ledger."""
    write, stream, final = widen(write), widen(stream), widen(final)
    sums = WriteSums.make_room(1, *write.shape[:2])
    sums.fill(0, write, stream, row_norms(stream))
    sums.branch_norm[0] = row_norms(widen(write if branch is None else branch))
    final_norm = row_norms(final)
    sums.final_dot[0] = row_dots(write, final, sums.write_norm[0], final_norm)
    return dict(zip(METRICS, write_metrics(sums, final_norm)[:, 0], strict=True))


def drawn(seed: int, d_model: int, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(2, 3, d_model, generator=generator)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    d_model=st.sampled_from([1, 2, 7, 64, 97]),
    logs=st.tuples(*[st.integers(-30, 30)] * 3),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
@example(seed=0, d_model=64, logs=(13, 28, -28), dtype=torch.float32)  # only the dot overflows
def test_metrics_are_the_reference_at_any_scale(
    seed: int, d_model: int, logs: tuple[int, int, int], dtype: torch.dtype
) -> None:
    """Also where squares overflow or underflow in float32."""
    write, stream, final = (
        drawn(seed + place, d_model, 10.0**log).to(dtype) for place, log in enumerate(logs)
    )
    found = measured(write, stream, final, branch=2 * write)
    for row, token in np.ndindex(2, 3):
        w, x, z = (values[row, token].double() for values in (write, stream, final))
        for name, value in token_metrics(w, x, 2 * w, z).items():
            near = {
                # Across is what is left of a difference; the others are small by chance.
                "orthogonal": 1e-3 * float(w.norm()),
                "parallel": 1e-6 * float(w.norm()),
                "cosine": 1e-6,
                "survival_cosine": 1e-6,
                "survival": 1e-6 * float(z.norm() / w.norm()),
                "erase_fraction": 1e-6 * float(w.norm() / x.norm()),
            }.get(name, 0.0)
            assert found[name][row, token] == pytest.approx(value, rel=3e-6, abs=near), name


@pytest.mark.parametrize("seed", range(3))
def test_parts_add_up(seed: int) -> None:
    found = measured(drawn(seed, 33), drawn(seed + 9, 33), drawn(seed + 18, 33))
    whole = found["parallel"] ** 2 + found["orthogonal"] ** 2
    np.testing.assert_allclose(whole, found["write_norm"] ** 2, rtol=1e-12)
    assert np.all(np.sign(found["parallel"]) == np.sign(found["cosine"]))


def test_directions_do_not_depend_on_scale() -> None:
    write, stream, final = drawn(1, 40), drawn(2, 40), drawn(3, 40)
    one, other = measured(write, stream, final), measured(1e4 * write, 1e4 * stream, 1e4 * final)
    for name in ("cosine", "relative_norm", "erase_fraction", "survival", "channel_share"):
        np.testing.assert_allclose(one[name], other[name], rtol=2e-5, err_msg=name)


def test_a_write_that_takes_back_the_stream_erases_it() -> None:
    stream = drawn(4, 16)
    found = measured(-stream, stream, stream)
    np.testing.assert_allclose(found["erase_fraction"], 1.0, rtol=1e-6)
    np.testing.assert_allclose(found["cosine"], -1.0, rtol=1e-6)
    np.testing.assert_allclose(measured(stream, stream, stream)["erase_fraction"], 0.0)


def test_a_zero_write_has_no_direction() -> None:
    """NaN, and not 0: a cosine of 0 would say that it is orthogonal."""
    found = measured(torch.zeros(2, 3, 8), drawn(5, 8), drawn(6, 8))
    for name in ("cosine", "channel_share", "survival", "survival_cosine"):
        assert np.isnan(found[name]).all(), name
    for name in ("write_norm", "relative_norm", "parallel", "orthogonal", "erase_fraction"):
        assert (found[name] == 0.0).all(), name


def test_a_write_into_a_zero_stream_is_infinitely_large() -> None:
    found = measured(drawn(5, 8), torch.zeros(2, 3, 8), drawn(6, 8))
    assert np.isinf(found["relative_norm"]).all()
    for name in ("cosine", "parallel", "orthogonal", "erase_fraction"):
        assert np.isnan(found[name]).all(), name


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_counted_and_undefined(value: float) -> None:
    write, stream = drawn(7, 9), drawn(8, 9)
    write[1, 2, [3, 5]] = value
    norms = row_norms(write)
    assert count_non_finite(write, norms).tolist() == [[0, 0, 0], [0, 0, 2]]
    found = measured(write, stream, drawn(9, 9))
    for name in set(METRICS) - {"branch_norm"}:
        assert np.isnan(found[name][1, 2]), name
        assert np.isfinite(found[name][0]).all(), name


def test_a_stream_that_is_not_finite_says_nothing_of_the_write() -> None:
    stream = drawn(8, 9)
    stream[0, 0, 0] = math.inf
    found = measured(drawn(7, 9), stream, drawn(9, 9))
    for name in ("relative_norm", "cosine", "parallel", "orthogonal", "erase_fraction"):
        assert np.isnan(found[name][0, 0]), name
    assert np.isfinite(found["write_norm"]).all()


def test_large_but_finite_is_not_counted() -> None:
    write = torch.full((1, 1, 4), 1e30)
    norms = row_norms(write)
    assert norms[0, 0] == pytest.approx(2e30)
    assert count_non_finite(write, norms).sum() == 0


def test_the_largest_channel_is_found_by_size_and_not_by_sign() -> None:
    write = torch.tensor([[[1.0, -5.0, 4.0]]])
    sums = WriteSums.make_room(1, 1, 1)
    sums.fill(0, write, write, row_norms(write))
    assert sums.channel[0, 0, 0] == 1
    assert sums.peak[0, 0, 0] == 5.0


def test_half_precision_is_summed_in_float32() -> None:
    write = torch.full((1, 1, 4096), 1.0, dtype=torch.bfloat16)
    assert row_norms(widen(write))[0, 0] == pytest.approx(64.0, rel=1e-6)
