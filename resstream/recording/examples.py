"""How are the inputs of a model that reads no tokens (pictures, features) run in batches?"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from resstream.stream.texts import Batch


@dataclass(frozen=True, slots=True)
class Examples:
    """Inputs as the model takes them, with the face of a `Corpus`."""

    sequences: Tensor
    """The first axis counts the examples."""
    n_positions: int
    """Positions that the stream has for one example."""

    @property
    def description(self) -> str:
        """What they are, in a phrase."""
        return f"{len(self.sequences)} inputs of shape {tuple(self.sequences.shape[1:])}"

    @property
    def hash(self) -> str:
        """SHA-256 of the values, first 16 hex digits."""
        flat = self.sequences.cpu().contiguous().flatten()
        return hashlib.sha256(flat.view(torch.uint8).numpy().tobytes()).hexdigest()[:16]

    def batches(self, max_tokens: int) -> Iterator[Batch]:
        """Batches of at most `max_tokens` positions (one example at least)."""
        step = max(1, max_tokens // self.n_positions)
        for start in range(0, len(self.sequences), step):
            part = self.sequences[start : start + step]
            yield Batch(part, tuple(range(start, start + len(part))))
