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
        gradients = torch.autograd.grad(loss, list(writes.values()))
    named = dict(zip(writes, gradients, strict=True))
    rows = [
        -(named[write.site].double() * writes[write.site].detach().double()).sum((1, 2))
        for write in model.spec.writes
    ]
    return torch.stack(rows).cpu().numpy()
