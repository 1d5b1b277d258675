"""The unchanged run of one batch, kept so that changed runs need not begin at the embedding."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from resstream.stream.model import Frame, StreamModel


@dataclass(frozen=True, slots=True)
class BaseRun:
    """One unchanged run of one batch."""

    tokens: Tensor
    frame: Frame
    streams: tuple[Tensor, ...]
    """The stream before each block, and after the last."""
    values: dict[str, Tensor]
    """Values at the sites that variants change."""
    logits: Tensor


@torch.no_grad()
def run_base(model: StreamModel, tokens: Tensor, sites: Sequence[str] = ()) -> BaseRun:
    """Run `tokens` unchanged and keep what variants start from.

    Args:
        model: The model.
        tokens: Token ids ``[batch, pos]``.
        sites: Sites whose values are kept as well.
    """
    values: dict[str, Tensor] = {}

    def keeping(site: str) -> Callable[[Tensor], None]:
        return lambda value: values.update({site: value})

    frame = model.begin(tokens)
    streams = [frame.stream]
    with model.hooked({site: keeping(site) for site in sites}):
        for layer in range(model.spec.n_layers):
            streams.append(model.run_block(layer, streams[-1], frame))
    return BaseRun(tokens, frame, tuple(streams), values, model.readout(streams[-1]))
