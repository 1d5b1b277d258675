"""Run variants from the base run's stream: what lies before the first change is not run again."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from resstream.stream.model import Frame, StreamModel
from resstream.sweep.variants import Edit, Variant


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


@torch.no_grad()
def run_variant(model: StreamModel, base: BaseRun, variant: Variant) -> Tensor:
    """The last stream ``[batch, pos, d_model]`` of `variant`."""

    def changing(edit: Edit) -> Callable[[Tensor], Tensor]:
        return lambda value: edit.change(value, base.values[edit.site])

    stream = base.streams[variant.first_layer]
    with model.hooked({edit.site: changing(edit) for edit in variant.edits}):
        for layer in range(variant.first_layer, model.spec.n_layers):
            stream = model.run_block(layer, stream, base.frame)
    return stream


def run_variants(
    model: StreamModel, tokens: Tensor, variants: Sequence[Variant]
) -> Iterator[tuple[Tensor, Tensor]]:
    """For each variant the base run's logits and its own, ``[batch, pos, d_vocab]`` both."""
    sites = sorted({edit.site for variant in variants for edit in variant.edits})
    base = run_base(model, tokens, sites)
    for variant in variants:
        with torch.no_grad():
            yield base.logits, model.readout(run_variant(model, base, variant))
