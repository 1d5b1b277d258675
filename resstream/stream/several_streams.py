"""Which known design has no one stream to follow?  Names it for the refusal of discovery."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from resstream.stream.calls import BlockCall, first_tensor

_UNKNOWN = "(several streams, or widths that change)"
_MIXED = 1e-4
"""A block's input counts as a mixture of earlier streams if no more than this is left over."""


@dataclass(frozen=True, slots=True)
class Step:
    """How one block of a list was called in the probe, and what it gave."""

    call: BlockCall | None
    output: Any


def name_streams(steps: Sequence[Step]) -> str:
    """What the blocks of a list hand on in place of one stream, in brackets.

    * DenseNet-like concatenation: what a block reads holds all that the block before it read, and
      is wider (Huang et al. 2016).
    * Hyper-connections: a stream of rank 4, ``[batch, pos, n, width]`` (Zhu et al. 2024).
    * Attention over depth: blocks read a list of earlier outputs, or a mixture of them.
    """
    reads = [None if step.call is None else step.call.stream for step in steps]
    writes = [first_tensor(step.output) for step in steps]
    if _is_concatenation(reads):
        return "(DenseNet-like concatenation: each block reads all earlier outputs side by side)"
    if all(write is not None and write.ndim == 4 for write in writes):
        return "(hyper-connections: several streams side by side that are mixed in every block)"
    if _is_mixture(reads, writes):
        return "(attention over depth: a block reads a mixture of all earlier outputs)"
    return _UNKNOWN


def _is_concatenation(reads: Sequence[Tensor | None]) -> bool:
    pairs = [(one, other) for one, other in pairwise(reads)]
    return bool(pairs) and all(
        one is not None and other is not None and _holds(other, one) for one, other in pairs
    )


def _holds(wide: Tensor, narrow: Tensor) -> bool:
    """True if `wide` begins or ends with all channels of `narrow`, and has more."""
    width = narrow.shape[-1]
    if wide.shape[:-1] != narrow.shape[:-1] or wide.shape[-1] <= width:
        return False
    return torch.equal(wide[..., :width], narrow) or torch.equal(wide[..., -width:], narrow)


def _is_mixture(reads: Sequence[Tensor | None], writes: Sequence[Tensor | None]) -> bool:
    """Blocks that read no tensor but give streams, or read a sum of earlier ones by token."""
    later = list(zip(reads[1:], range(1, len(reads)), strict=True))
    if not later or any(write is None or write.ndim != 3 for write in writes):
        return False
    if all(read is None for read, _ in later):
        return True
    first = reads[0]
    if first is None:
        return False
    given = [first, *(write for write in writes if write is not None)]
    return all(read is not None and _is_sum_of(read, given[: at + 1]) for read, at in later)


def _is_sum_of(read: Tensor, earlier: Sequence[Tensor]) -> bool:
    """True if the vector of every token is a weighted sum of its earlier vectors."""
    if any(one.shape != read.shape for one in earlier) or len(earlier) >= read.shape[-1]:
        return False
    columns = torch.stack([one.double() for one in earlier], dim=-1)
    target = read.double()[..., None]
    weights = torch.linalg.lstsq(columns, target, driver="gelsd").solution
    return float((columns @ weights - target).norm()) <= _MIXED * float(target.norm())
