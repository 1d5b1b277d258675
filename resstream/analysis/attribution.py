"""Which writes would be missed?  A first-order estimate of all zero ablations at once.

Taking a write ``w`` away changes the loss by about ``-<dL/dw, w>``: one forward and one backward
give the estimate for every write.  It only ranks candidates; exact ablation decides.

References:
    Nanda (2023), "Attribution patching"; Kramar et al. (2024), "AtP*".
"""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from resstream.analysis.losses import token_losses
from resstream.stream.model import StreamModel
from resstream.stream.texts import Batch, Corpus

_BATCH_TOKENS = 512


def estimate_ablations(
    model: StreamModel, corpus: Corpus, *, progress: Callable[[int, int], None] | None = None
) -> Float[np.ndarray, "write sequence"]:
    """Estimated effect of zero-ablating each write, summed over each sequence, in nats.

    Args:
        model: A causal language model.
        corpus: What it reads.
        progress: Called after each batch.
    """
    estimates = np.zeros((len(model.spec.writes), len(corpus.sequences)))
    batches = list(corpus.batches(_BATCH_TOKENS))
    for number, batch in enumerate(batches, 1):
        estimates[:, list(batch.rows)] = _estimate(model, batch)
        if progress is not None:
            progress(number, len(batches))
    return estimates


def _estimate(model: StreamModel, batch: Batch) -> Float[np.ndarray, "write batch"]:
    writes: dict[str, Tensor] = {}

    def cut(value: Tensor) -> Tensor:
        # The graph begins at the embedding, so that it exists even if all weights are frozen.
        return value.detach().requires_grad_()

    def keep(site: str) -> Callable[[Tensor], None]:
        return lambda value: writes.update({site: value})

    first = f"blocks.{model.spec.blocks[0].layer}.hook_resid_pre"
    hooks = {write.site: keep(write.site) for write in model.spec.writes}
    with torch.enable_grad(), model.hooked({first: cut, **hooks}):
        loss = token_losses(model.forward(batch.tokens), batch.tokens).sum()
        # A write that an edit has replaced by a constant has no gradient, and nothing to lose.
        moving = {site: value for site, value in writes.items() if value.requires_grad}
        gradients = torch.autograd.grad(loss, list(moving.values()), allow_unused=True)
    named = dict(zip(moving, gradients, strict=True))
    rows = [_overlap(writes[write.site], named.get(write.site)) for write in model.spec.writes]
    return torch.stack(rows).numpy()


def _overlap(write: Tensor, gradient: Tensor | None) -> Float[Tensor, " batch"]:
    if gradient is None:
        return torch.zeros(write.shape[0], dtype=torch.float64)
    return -(gradient.double() * write.detach().double()).sum((1, 2)).cpu()
