"""How fast does the stream grow from block to block?"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

_FIRST_BLOCK = 2
_FEWEST = 3


def fit_growth(sites: Sequence[str], median: Float[np.ndarray, " depth"]) -> tuple[float, float]:
    """Least-squares line through the log of the stream's median norm before each block.

    The first two blocks, which set the size of the stream, and what lies behind the last block are
    left out.  In a Post-LN model the factor is 1 by construction.

    Args:
        sites: Site of each point of the stream.
        median: Median norm at each point, without sinks.

    Returns:
        Growth factor per block, and the R^2 of the fit; NaN if fewer than three blocks count.

    References:
        Heimersheim and Turner (2023), "Residual stream norms grow exponentially over the forward
        pass".
    """
    chosen = [
        (int(site.split(".")[1]), norm)
        for site, norm in zip(sites, median, strict=True)
        if site.endswith("resid_pre") and norm > 0 and np.isfinite(norm)
    ]
    blocks = np.array([block for block, _ in chosen if block >= _FIRST_BLOCK], dtype=float)
    norms = np.log([norm for block, norm in chosen if block >= _FIRST_BLOCK])
    if len(blocks) < _FEWEST:
        return float("nan"), float("nan")
    slope, start = np.polyfit(blocks, norms, 1)
    left = ((norms - slope * blocks - start) ** 2).sum()
    total = ((norms - norms.mean()) ** 2).sum()
    return float(np.exp(slope)), float(1 - left / total) if total > 0 else float("nan")
