"""How do experiments read the embedded model?"""

from functools import cache

import torch
from jaxtyping import Int
from torch import Tensor

from resstream.nn.transformer import ResidualTransformer
from resstream.stream.loading import load
from resstream.stream.model import StreamModel
from resstream.stream.texts import read_corpus

CONTEXT = 64
"""Tokens of a sequence."""


@cache
def demo(name: str = "demo") -> StreamModel:
    """The embedded model, loaded once; it must not be changed."""
    return load(name)


def demo_transformer() -> ResidualTransformer:
    """The native model inside."""
    (found,) = (part for part in demo().module.modules() if isinstance(part, ResidualTransformer))
    return found


@cache
def _sequences() -> Int[Tensor, "sequence pos"]:
    corpus = read_corpus(demo(), None, context=CONTEXT)
    return torch.stack([row for row in corpus.sequences if len(row) == CONTEXT])


def demo_tokens(n_sequences: int) -> Int[Tensor, "sequence pos"]:
    """Sequences of `CONTEXT` tokens of the text that comes with it, drawn from the random state."""
    rows = _sequences()
    return rows[torch.randperm(len(rows))[:n_sequences]]
