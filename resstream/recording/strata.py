"""Which tokens are sinks, to be kept apart from the rest in every statistic?

The first token of a sequence and a few others ("massive activations", Sun et al. 2024) carry a
stream hundreds of times as large as that of their neighbours; in one average with them, the others
would not be seen.  The rule has no unit: a token is a sink if, somewhere in the middle half of the
network, its stream is more than `FACTOR` times as large as the median of its sequence.  At most
`MOST` of a sequence are taken, the largest first, so that a damaged model can't move its text out
of sight.
"""

import numpy as np
from jaxtyping import Float, Int

from resstream.shapes import STRATA

FACTOR = 10.0
"""How many times the median of its sequence the stream of a massive token is."""

MOST = 0.05
"""Largest share of a sequence that is massive, beside the first token (one token at least)."""

_BODY, _SINK = STRATA.index("body"), STRATA.index("sink")


def stratify(norms: Float[np.ndarray, "depth batch pos"]) -> Int[np.ndarray, "batch pos"]:
    """Index into `STRATA` for each token, from the norms of the stream at every depth.

    Tokens whose stream is not finite are never massive: they are what has to be seen.
    """
    depth, _, pos = norms.shape
    middle = norms[depth // 4 : max(depth // 4 + 1, depth - depth // 4)]
    ratio = _ratios(middle).max(0)
    ratio[:, 0] = 0.0  # a sink in any case; it must not take the place of another
    most = max(1, int(MOST * pos))
    ratio[np.argsort(np.argsort(-ratio, axis=-1, kind="stable"), axis=-1) >= most] = 0.0
    strata = np.where(ratio > FACTOR, _SINK, _BODY)
    strata[:, 0] = _SINK
    return strata


def _ratios(norms: Float[np.ndarray, "depth batch pos"]) -> Float[np.ndarray, "depth batch pos"]:
    """Each norm over the median of its sequence; 0 where either says nothing."""
    finite = np.isfinite(norms)
    known = np.where(finite, norms, np.nan)
    known[~finite.any(-1)] = 0.0
    median = np.nanmedian(known, axis=-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = known / median
    return np.where(np.isfinite(ratio), ratio, 0.0)
