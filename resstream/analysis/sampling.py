"""Streams of a sample of tokens, at every block's end: what rank and similarity are measured on."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from resstream.analysis.points import Point, run_streams, stream_points
from resstream.errors import ConfigError
from resstream.recording.ledger import row_norms
from resstream.recording.strata import stratify
from resstream.shapes import STRATA
from resstream.stream.model import StreamModel
from resstream.stream.texts import Corpus

_BATCH_TOKENS = 1024
_FEWEST = 8


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Tokens drawn evenly from all sequences, with the last and the first of each."""

    points: tuple[Point, ...]
    streams: Float[Tensor, "depth token d_model"]
    """In float32, on the host."""
    sequence: Int[np.ndarray, " token"]
    is_body: Bool[np.ndarray, " token"]
    """Neither a first token nor a massive one."""
    is_last: Bool[np.ndarray, " token"]

    def of_body(self) -> Float[Tensor, "depth token d_model"]:
        """Streams of the body's tokens."""
        return self.streams[:, torch.from_numpy(self.is_body)]


def sample_streams(model: StreamModel, corpus: Corpus, n_tokens: int, *, seed: int = 0) -> Sample:
    """Run a corpus and keep the streams of about `n_tokens` tokens.

    Raises:
        ConfigError: The sample would be too small for statistics.
    """
    if min(n_tokens, corpus.n_predicted) < _FEWEST:
        raise ConfigError(
            f"the sample must have at least {_FEWEST} tokens, got {n_tokens} of "
            f"{corpus.n_predicted} in the text"
        )
    points = stream_points(model.spec, mid=False)
    generator = torch.Generator().manual_seed(seed)
    each = max(1, -(-n_tokens // len(corpus.sequences)))
    streams: list[Tensor] = []
    places: list[np.ndarray] = []
    for batch in corpus.batches(_BATCH_TOKENS):
        found, _ = run_streams(model, batch.tokens, points)
        length = batch.tokens.shape[1]
        drawn = 1 + torch.randperm(length - 2, generator=generator)[: each - 1]
        at = torch.cat([torch.tensor([0]), drawn.sort().values, torch.tensor([length - 1])])
        strata = stratify(np.stack([row_norms(stream) for stream in found]))[:, at.numpy()]
        kept = [stream[:, at.to(stream.device)].float().cpu() for stream in found]
        streams.append(torch.stack(kept).flatten(1, 2))
        rows = np.repeat(batch.rows, len(at))
        is_last = np.tile(at.numpy() == length - 1, len(batch.rows))
        body = strata.ravel() == STRATA.index("body")
        places.append(np.stack([rows, body, is_last]))
    sequence, is_body, is_last = np.concatenate(places, axis=1)
    return Sample(
        points, torch.cat(streams, 1), sequence, is_body.astype(bool), is_last.astype(bool)
    )
