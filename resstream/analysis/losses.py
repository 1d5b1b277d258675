"""Numbers a token at a time: cross-entropy of what came next, and divergence of two outputs."""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from resstream.stream.model import StreamModel
from resstream.stream.texts import Corpus
from resstream.sweep.readout import Readout


@torch.no_grad()
def sequence_losses(model: StreamModel, corpus: Corpus) -> Float[np.ndarray, " sequence"]:
    """Cross-entropy of each sequence, summed over its tokens, in nats."""
    found = np.zeros(len(corpus.sequences))
    for batch in corpus.batches():
        found[list(batch.rows)] = summed_losses(model.forward(batch.tokens), batch.tokens)
    return found


def mean_loss(model: StreamModel, corpus: Corpus) -> float:
    """Cross-entropy of `model` on `corpus`, in nats per predicted token."""
    return float(sequence_losses(model, corpus).sum()) / corpus.n_predicted


def summed_losses(
    logits: Float[Tensor, "batch pos d_vocab"], tokens: Int[Tensor, "batch pos"]
) -> Float[np.ndarray, " batch"]:
    """`token_losses` of each sequence, summed in float64."""
    return token_losses(logits, tokens).double().sum(1).cpu().numpy()


def token_losses(
    logits: Float[Tensor, "batch pos d_vocab"], tokens: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch predicted"]:
    """Cross-entropy of each next token, in nats; one position fewer than there are tokens."""
    # The last position gets some goal too and is dropped behind; a slice of the logits is a copy.
    goal = tokens.to(logits.device).roll(-1, 1).flatten()
    losses = functional.cross_entropy(logits.float().flatten(0, 1), goal, reduction="none")
    return losses.view(tokens.shape)[:, :-1]


@torch.no_grad()
def stream_losses(
    model: StreamModel,
    streams: Float[Tensor, "batch pos d_model"],
    tokens: Int[Tensor, "batch pos"],
) -> Float[Tensor, "batch predicted"]:
    """`token_losses` from last streams, with few positions' logits in memory at a time."""
    rows = streams[:, :-1].flatten(0, 1)
    goal = tokens[:, 1:].to(rows.device).flatten()
    losses: list[Tensor] = []
    done = 0
    for logits in Readout(model, None, rows[:1]).parts(rows):
        own = goal[done : done + len(logits)]
        losses.append(functional.cross_entropy(logits.float(), own, reduction="none"))
        done += len(logits)
        del logits  # before the next are made
    return torch.cat(losses).view(tokens.shape[0], tokens.shape[1] - 1)


def summed_divergences(
    base: Float[Tensor, "batch pos d_vocab"], changed: Float[Tensor, "batch pos d_vocab"]
) -> Float[np.ndarray, " batch"]:
    """`token_divergences` of each sequence behind its first token, summed in float64."""
    return token_divergences(base, changed).double()[:, 1:].sum(1).cpu().numpy()


def token_divergences(
    base: Float[Tensor, "batch pos d_vocab"], changed: Float[Tensor, "batch pos d_vocab"]
) -> Float[Tensor, "batch pos"]:
    """Kullback-Leibler divergence KL(base || changed) of the next-token distributions, in nats."""
    rows = [_divergence(one, other) for one, other in zip(base, changed, strict=True)]
    return torch.stack(rows)


def _divergence(base: Tensor, changed: Tensor) -> Tensor:
    log_base = base.float().log_softmax(-1)
    log_changed = changed.float().log_softmax(-1)
    return functional.kl_div(log_changed, log_base, reduction="none", log_target=True).sum(-1)
