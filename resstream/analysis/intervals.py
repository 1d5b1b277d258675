"""How sure a mean over texts is: intervals over documents, and corrections for many tests.

The unit is the document (a sequence where there are few documents), because tokens of one text are
not independent.  Effects are paired: the same tokens with and without the change.
"""

from typing import Any

import numpy as np
from jaxtyping import Float, Int

_RESAMPLES = 2000
_ENOUGH = 5


def few(count: int, what: str) -> list[str]:
    """A warning, if intervals over so many (documents, pairs) are little more than their range."""
    if not 1 < count < _ENOUGH:
        return []
    return [f"intervals over {count} {what} say little; give {_ENOUGH} or more"]


def by_document(
    sums: Float[np.ndarray, " sequence"],
    counts: Int[np.ndarray, " sequence"],
    documents: Int[np.ndarray, " sequence"],
) -> tuple[Float[np.ndarray, " document"], Float[np.ndarray, " document"]]:
    """Add up the sums and counts of the sequences that belong to one document."""
    _, where = np.unique(documents, return_inverse=True)
    return np.bincount(where, weights=sums), np.bincount(where, weights=counts)


def bootstrap_interval(
    sums: Float[np.ndarray, " document"],
    counts: Float[np.ndarray, " document"],
    *,
    seed: int = 0,
    confidence: float = 0.95,
) -> tuple[float, float]:
    """Interval of ``sum(sums) / sum(counts)`` over documents drawn with replacement.

    Bias-corrected and accelerated (BCa); percentile where that is not defined.  NaN for fewer than
    two documents or sums that are not finite; a point where all documents agree.
    """
    from scipy.stats import bootstrap

    means = sums / counts
    if len(sums) < 2 or not np.isfinite(means).all():
        return float("nan"), float("nan")
    if np.ptp(means) <= 1e-12 * max(1e-30, float(np.abs(means).max())):
        return float(means[0]), float(means[0])

    def ratio(drawn: np.ndarray, weights: np.ndarray, axis: int = -1) -> np.ndarray:
        return drawn.sum(axis) / weights.sum(axis)

    for method in ("BCa", "percentile"):
        found = bootstrap(
            (sums, counts),
            ratio,
            paired=True,
            n_resamples=_RESAMPLES,
            confidence_level=confidence,
            method=method,
            rng=np.random.default_rng(seed),
        ).confidence_interval
        if np.isfinite([found.low, found.high]).all():
            break
    return float(found.low), float(found.high)


def p_below_zero(means: Float[np.ndarray, " document"]) -> float:
    """One-sided p-value of a mean below zero (t-test over documents); 1 if it can't be told."""
    from scipy.stats import ttest_1samp

    if len(means) < 2 or not np.isfinite(means).all():
        return 1.0
    if np.ptp(means) == 0:
        return 0.0 if means[0] < 0 else 1.0
    test: Any = ttest_1samp(means, 0.0, alternative="less")
    return float(test.pvalue)


def holm(p_values: Float[np.ndarray, " test"]) -> Float[np.ndarray, " test"]:
    """Holm's adjusted p-values: the chance of any false alarm among all tests stays below each.

    References:
        Holm (1979), "A simple sequentially rejective multiple test procedure".
    """
    order = np.argsort(p_values)
    factors = len(p_values) - np.arange(len(p_values))
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p_values[order] * factors))
    return adjusted
