"""The base run that variants start from, and what sets a variant off."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from resstream.stream.model import Frame, StreamModel
from resstream.sweep.arguments import NotPackableError
from resstream.sweep.attention import AttentionCall, hearing
from resstream.sweep.patches import at_site


@dataclass(frozen=True, slots=True)
class Start:
    """A variant: the base run up to block `layer`, where the stream at `position` becomes `row`."""

    index: int
    """Which variant of the sweep this is."""
    sequence: int
    layer: int
    """The block that reads the changed row; `n_layers` if only the readout does."""
    position: int
    row: Float[Tensor, " d_model"]


@dataclass(frozen=True, slots=True)
class HeardRun:
    """An unchanged run of sequences of one length, with what variants need of it."""

    tokens: Tensor
    frame: Frame
    streams: tuple[Float[Tensor, "batch pos d_model"], ...]
    """The stream before each block, and after the last."""
    values: dict[int, Float[Tensor, "batch pos channel"]]
    """The values at the site that was asked for, by layer."""
    attention: tuple[AttentionCall, ...]
    """What each block's attention was called with; empty if that was not asked for."""

    @property
    def length(self) -> int:
        """Positions of each sequence."""
        return self.tokens.shape[1]


@torch.no_grad()
def hear_base(
    model: StreamModel,
    tokens: Tensor,
    *,
    site: str | None = None,
    layers: Sequence[int] = (),
    attention: int | None = 0,
    noise: Float[Tensor, "batch pos d_model"] | None = None,
) -> HeardRun:
    """Run `tokens` unchanged, keeping the streams and what else variants start from.

    Args:
        model: The model.
        tokens: Token ids ``[batch, pos]``.
        site: A site whose values are kept, in `layers`.
        layers: See `site`.
        attention: For how many of the first sequences the attention calls are kept; None for all.
        noise: Added to the embedding.

    Raises:
        NotPackableError: Attention was asked for, and a block does not call it exactly once.
    """
    frame = model.begin(tokens)
    streams = [frame.stream if noise is None else frame.stream + noise.to(frame.stream)]
    values: dict[int, Tensor] = {}
    calls: list[AttentionCall] = []
    count = tokens.shape[0] if attention is None else attention
    for layer in range(model.spec.n_layers):
        wanted = site if layer in layers else None
        with _keeping(model, layer, wanted, values), hearing() as heard:
            streams.append(model.run_block(layer, streams[-1], frame))
        if count:
            if len(heard) != 1:
                raise NotPackableError(_not_once(layer, len(heard)))
            calls.append(heard[0].of_sequences(count))
    return HeardRun(tokens, frame, tuple(streams), values, tuple(calls))


def _not_once(layer: int, count: int) -> str:
    return f"block {layer} calls attention {count} times, not once"


@contextmanager
def _keeping(
    model: StreamModel, layer: int, site: str | None, values: dict[int, Tensor]
) -> Iterator[None]:
    with ExitStack() as stack:
        if site is not None:
            # A copy: some models go on to change the tensor in place.
            keep = lambda value: values.update({layer: value.clone()})  # noqa: E731
            stack.enter_context(at_site(model, layer, site, keep))
        yield
