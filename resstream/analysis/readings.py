"""What does one set of logits say, token by token, and how far is it from the model's last word?

Everything is computed from log-probabilities in float32 (float64 for a float64 model), one sequence
at a time, so that no second array of the size of the logits is held.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

READINGS = ("loss_nats", "kl_nats", "entropy_nats", "rank")
"""Names of the readings of a token, in the order of `Reading.stack`."""


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """Readings of logits ``[batch, pos, d_vocab]``."""

    loss: Float[Tensor, "batch pos"]
    """Cross-entropy of the token that came next, in nats; NaN where none did."""
    kl: Float[Tensor, "batch pos"]
    """KL(model's output || these logits), in nats."""
    entropy: Float[Tensor, "batch pos"]
    """Entropy, in nats."""
    rank: Int[Tensor, "batch pos"]
    """How many tokens are likelier than the one that came next; -1 where none did."""
    best: Int[Tensor, "batch pos k"]
    """The likeliest tokens."""
    best_probs: Float[Tensor, "batch pos k"]
    target_probs: Float[Tensor, "batch pos target"]
    target_ranks: Int[Tensor, "batch pos target"]

    def stack(self) -> Float[Tensor, "reading batch pos"]:
        """The four `READINGS`, as float64."""
        rank = torch.where(self.rank < 0, torch.nan, self.rank.double())
        return torch.stack([self.loss.double(), self.kl.double(), self.entropy.double(), rank])


def log_probs(logits: Float[Tensor, "*shape d_vocab"]) -> Float[Tensor, "*shape d_vocab"]:
    """Log-probabilities in float32, or in float64 for float64 logits."""
    return (logits if logits.dtype == torch.float64 else logits.float()).log_softmax(-1)


def read_logits(
    logits: Float[Tensor, "batch pos d_vocab"],
    final: Float[Tensor, "batch pos d_vocab"],
    following: Int[Tensor, "batch pos"],
    *,
    top_k: int,
    targets: Int[Tensor, " target"] | None = None,
) -> Reading:
    """Read logits against the model's own.

    Args:
        logits: What is read.
        final: The model's own logits.
        following: The token that came next at each position; -1 where none did.
        top_k: How many of the likeliest tokens to keep.
        targets: Tokens whose probability and rank are wanted.
    """
    wanted = torch.empty(0, dtype=torch.long) if targets is None else targets
    rows = [
        _read_sequence(*parts, top_k, wanted.to(logits.device))
        for parts in zip(logits, final, following.to(logits.device), strict=True)
    ]
    return Reading(*(torch.stack(parts) for parts in zip(*rows, strict=True)))


def _read_sequence(
    logits: Tensor, final: Tensor, following: Tensor, top_k: int, targets: Tensor
) -> tuple[Tensor, ...]:
    own, last = log_probs(logits), log_probs(final)
    known = following >= 0
    label = own.gather(-1, following.clamp(min=0)[:, None])
    best = logits.topk(top_k, dim=-1).indices
    wanted = own[:, targets]
    return (
        torch.where(known, -label[:, 0], torch.nan),
        _expect(last, last - own),
        _expect(own, -own),
        torch.where(known, (own > label).sum(-1), -1),
        best,
        own.gather(-1, best).exp(),
        wanted.exp(),
        torch.stack([(own > part[:, None]).sum(-1) for part in wanted.unbind(-1)], -1)
        if len(targets)
        else torch.empty(len(own), 0, dtype=torch.long, device=own.device),
    )


def _expect(log_weights: Tensor, values: Tensor) -> Tensor:
    """Mean of `values` under a distribution; what is impossible does not count."""
    weights = log_weights.exp()
    return torch.where(weights == 0, 0.0, weights * values).sum(-1)
