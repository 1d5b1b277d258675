"""Corruption by Gaussian noise on the embedding, as causal tracing does it; warned about.

The noise takes the model off its distribution, and what is found depends on the draw and on its
size; replacing tokens by others of the same kind is preferred.

References:
    Meng et al. (2022), "Locating and Editing Factual Associations in GPT", arXiv:2202.05262;
    Zhang and Nanda (2023), "Towards Best Practices of Activation Patching", arXiv:2309.16042.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor

from resstream.errors import TextError
from resstream.stream.model import StreamModel

WARNING = (
    "Gaussian noise takes the model off its distribution, and effects depend on the draw; replace "
    "tokens by others of the same kind where you can"
)


@torch.no_grad()
def draw_noise(
    model: StreamModel,
    tokens: Int[Tensor, " pos"],
    size: object,
    positions: object,
    number: int,
) -> Float[Tensor, "pos d_model"]:
    """What is added to the embedding of a prompt.

    Args:
        model: A language model.
        tokens: The prompt.
        size: Standard deviation of the noise, in standard deviations of the prompt's embedding.
        positions: Where; everywhere but at the first token if None.
        number: Of the pair; the seed of the draw.

    Raises:
        TextError: The size or the positions make no sense.
    """
    if not (isinstance(size, int | float) and math.isfinite(size) and size > 0):
        raise TextError(f"pair {number}: noise must be a number above 0, got {size!r}")
    chosen = list(range(1, len(tokens))) if positions is None else _positions(positions)
    if not chosen or not all(0 <= position < len(tokens) for position in chosen):
        raise TextError(
            f"pair {number}: noised must be positions in 0..{len(tokens) - 1}, at least one, "
            f"got {'a prompt of one token' if positions is None else positions}"
        )
    embedding = model.begin(tokens[None]).stream[0]
    generator = torch.Generator().manual_seed(number)
    drawn = torch.randn(embedding.shape, generator=generator).to(embedding)
    noise = torch.zeros_like(embedding)
    noise[chosen] = size * embedding.std() * drawn[chosen]
    return noise


def _positions(given: object) -> list[int]:
    """The positions that somebody gave; none if they are no list of numbers."""
    if isinstance(given, Sequence) and all(isinstance(item, int) for item in given):
        return list(given)
    return []


@contextmanager
def noised(model: StreamModel, noise: Float[Tensor, "pos d_model"] | None) -> Iterator[None]:
    """While open, `noise` is added to the stream that block 0 reads."""
    if noise is None:
        yield
        return
    add: Callable[[Tensor], Tensor] = lambda stream: stream + noise  # noqa: E731
    with model.hooked({"blocks.0.hook_resid_pre": add}):
        yield
