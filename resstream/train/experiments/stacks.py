"""Which small models do the experiments run on, and how are they read?"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Int
from torch import Tensor

from resstream.nn.config import LayerNorm, TransformerConfig
from resstream.nn.initialisation import Xavier
from resstream.nn.transformer import ResidualTransformer

SMALL = TransformerConfig(
    n_layers=6, d_model=64, n_heads=4, d_vocab=128, n_ctx=128, norm=LayerNorm(), init=Xavier(),
)  # fmt: skip
"""LayerNorm and Xavier as in the papers on norm placement; causal, rotary."""


def transformer(**changes: Any) -> ResidualTransformer:
    """`SMALL` with some fields changed, drawn from the random state."""
    return ResidualTransformer(replace(SMALL, **changes))


def random_tokens(batch: int, pos: int, d_vocab: int = SMALL.d_vocab) -> Int[Tensor, "batch pos"]:
    """Token ids without any order."""
    return torch.randint(d_vocab, (batch, pos))


def next_token_loss(model: ResidualTransformer, tokens: Int[Tensor, "batch pos"]) -> Tensor:
    """Mean cross-entropy of the next token, in nats."""
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def sites_of(
    model: ResidualTransformer, tokens: Int[Tensor, "batch pos"], *ends: str
) -> dict[str, Tensor]:
    """Values at the sites whose names end so, in the order in which they were reached."""
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens, names_filter=lambda name: name.endswith(ends))
    return dict(cache)


def rms(values: Float[Tensor, "..."]) -> float:
    """Root mean square over all elements."""
    return float(values.double().square().mean().sqrt())


def log_slope(places: Sequence[float], values: Sequence[float]) -> float:
    """Exponent p of the best ``value = c * place^p``; NaN if a value is not positive and finite."""
    if not all(value > 0 and math.isfinite(value) for value in values):
        return math.nan
    return float(np.polyfit(np.log(places), np.log(values), 1)[0])
