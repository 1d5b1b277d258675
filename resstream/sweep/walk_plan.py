"""How many variants walk together within a limit of memory, and what will it all cost?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

import torch

from resstream.errors import ConfigError
from resstream.stream.model import StreamModel
from resstream.sweep.arguments import probe_tokens
from resstream.sweep.memory import (
    READOUT_BYTES,
    block_bytes,
    free_memory,
    scores_bytes,
    show_bytes,
    stream_bytes,
)
from resstream.sweep.readout import Readout
from resstream.sweep.variants import Variant
from resstream.sweep.walk import blocks_walked, group_variants

_ROWS = 512
"""Positions that go through a block at once: more would not make the products faster."""
_GROUP_ROWS = 16 * _ROWS
"""Rows of all variants that walk together: little to lose if interrupted, and each further group
costs no more than a block or two of the base."""
_BASE_STREAMS = 6
"""The base's stream before and behind a block, where it is kept, its writes, the embedding."""
Shape = tuple[int, int]
"""Sequences and positions of a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkPlan:
    """The size of a sweep over one text."""

    variants: int
    layer_tokens: int
    """Positions that go through a block."""
    naive_layer_tokens: int
    """The same if every variant were a whole forward."""
    memory_bytes: int
    """The most that the sweep takes, beside the model."""


def rows_at_once(batch_tokens: int) -> int:
    """Positions that go through a block at once for a batch of so many tokens."""
    return max(_ROWS, batch_tokens)


def most_together(model: StreamModel, shape: Shape, memory: int | None) -> int:
    """How many variants of a batch may walk together.

    Args:
        model: The model.
        shape: Sequences and positions of the base run.
        memory: Bytes that the sweep may take beside the model; half of what is free if None.

    Raises:
        ConfigError: It is not enough for one.
    """
    allowed = memory or free_memory(model.device)
    tokens = math.prod(shape)
    one, fixed = stream_bytes(model, tokens), _fixed_bytes(model, shape)
    if allowed < fixed + one:
        raise ConfigError(
            f"a batch of {tokens} tokens needs {show_bytes(fixed + one)} of memory, got "
            f"{show_bytes(allowed)}; allow more or shorten the text's windows"
        )
    return max(1, min(_GROUP_ROWS // tokens, (allowed - fixed) // one))


def _fixed_bytes(model: StreamModel, shape: Shape) -> int:
    tokens = math.prod(shape)
    rows = rows_at_once(tokens)
    scores = scores_bytes(model, rows // shape[1], shape[1])
    base = _BASE_STREAMS * stream_bytes(model, tokens)
    return READOUT_BYTES + block_bytes(model, rows) + scores + base


def plan_walks(
    model: StreamModel, variants: Sequence[Variant], batches: Sequence[Shape], memory: int | None
) -> WalkPlan:
    """What it costs to run `variants` on batches of these shapes."""
    layer_tokens = most = 0
    for shape in batches:
        tokens = math.prod(shape)
        together = most_together(model, shape, memory)
        groups = group_variants(variants, together)
        layer_tokens += tokens * blocks_walked(model.spec, variants, groups)
        state = min(together, len(variants)) * stream_bytes(model, tokens)
        most = max(most, _fixed_bytes(model, shape) + state)
    return WalkPlan(
        variants=len(variants),
        layer_tokens=layer_tokens,
        naive_layer_tokens=(1 + len(variants)) * model.spec.n_layers * sum(map(math.prod, batches)),
        memory_bytes=most,
    )


@torch.no_grad()
def estimate_seconds(model: StreamModel, plan: WalkPlan, text_tokens: int, longest: int) -> float:
    """How long it will take here, from the time of one block and one readout.

    Args:
        model: The model.
        plan: What is to be done.
        text_tokens: Tokens of the text; each variant is read out on them.
        longest: Tokens of the longest sequence.
    """
    frame = model.begin(probe_tokens(model, max(1, _ROWS // longest), longest))
    rows = frame.stream[..., 0].numel()
    began = monotonic()
    stream = model.run_block(0, frame.stream, frame)
    block = (monotonic() - began) / rows
    few = stream.flatten(0, 1)[:256]
    began = monotonic()
    Readout(model, None, few[:1])(few)
    readout = (monotonic() - began) / len(few)
    return block * plan.layer_tokens + readout * (1 + plan.variants) * text_tokens
