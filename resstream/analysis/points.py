"""Where can the stream be read, and what is it there?

A *point* is the stream after the embedding or after a write; blocks that write once, in parallel,
or in a way that could not be taken apart have one point, at their end.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from resstream.stream.model import StreamModel
from resstream.stream.sites import block_site, has_resid_mid
from resstream.stream.spec import StreamSpec

EMBEDDING = -1
"""Stands for the embedding where a point names the block that wrote last."""


@dataclass(frozen=True, slots=True)
class Point:
    """One point of the stream."""

    label: str
    """``embed``, ``L3 attn`` (after that write) or ``L3`` (after the block)."""
    site: str
    layer: int
    """The block that wrote last; `EMBEDDING` before the first."""


def stream_points(spec: StreamSpec, *, mid: bool = True) -> tuple[Point, ...]:
    """All points in order of execution.

    Args:
        spec: The stream.
        mid: Also between the two writes of a block.
    """
    points = [Point("embed", block_site(0, "resid_pre"), EMBEDDING)]
    for block in spec.blocks:
        between = mid and has_resid_mid(block) and not block.opaque
        if between:
            write = block.writes[0]
            points.append(Point(write.label, block_site(block.layer, "resid_mid"), block.layer))
        label = block.writes[-1].label if between else f"L{block.layer}"
        points.append(Point(label, block_site(block.layer, "resid_post"), block.layer))
    return tuple(points)


def run_streams(
    model: StreamModel, tokens: Int[Tensor, "batch pos"], points: Sequence[Point]
) -> tuple[list[Float[Tensor, "batch pos d_model"]], Float[Tensor, "batch pos d_vocab"]]:
    """Run `tokens` once, by the model's own forward.

    Returns:
        The stream at each point, and the model's output.
    """
    kept: dict[str, Tensor] = {}

    def keeping(site: str) -> Callable[[Tensor], None]:
        # A copy: some models add to the stream in place.
        return lambda value: kept.update({site: value.detach().clone()})

    with torch.no_grad():
        output = model.run(tokens, {point.site: keeping(point.site) for point in points})
    return [kept[point.site] for point in points], output
