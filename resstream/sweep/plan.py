"""What a patching sweep will compute, in which chunks, and what it saves: known before it runs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from resstream.errors import ConfigError
from resstream.stream.model import StreamModel
from resstream.sweep.memory import (
    READOUT_BYTES,
    base_bytes,
    block_bytes,
    show_bytes,
    variant_bytes,
)
from resstream.sweep.packed import ROWS
from resstream.sweep.patches import Cell

_MOST_PAIRS = 16
"""Pairs that share one base run: more would not make the products faster."""
_STATE_ROWS = 8 * ROWS
"""Rows of all variants of a chunk: enough for large products, and little to lose if interrupted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """The size of a sweep."""

    variants: int
    """Cells asked for."""
    computed: int
    """Cells that can change the answer, as far as the tokens tell; the runs may show fewer."""
    layer_tokens: int
    """Positions that go through a block."""
    naive_layer_tokens: int
    """The same if every cell were a whole forward."""
    memory_bytes: int
    """The most that the sweep takes, beside the model."""
    suffixes: bool
    """True if variants run as suffixes behind the base run's keys and values."""
    reason: str
    """Why not, if they do not."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How a limit of memory is shared out."""

    pairs: int
    """Pairs that run together."""
    rows: int
    """Positions that go through a block at once."""
    state_bytes: int
    """For the streams of the variants."""


def share_memory(model: StreamModel, length: int, memory: int, *, keeps_values: bool) -> Budget:
    """Share `memory` out for pairs of `length` tokens.

    Raises:
        ConfigError: It is not enough for one pair.
    """
    rows = max(length, ROWS)
    fixed = READOUT_BYTES + block_bytes(model, rows)
    one = base_bytes(model, length, keeps_values=keeps_values)
    least = fixed + one + variant_bytes(model, length)
    if memory < least:
        raise ConfigError(
            f"a pair of {length} tokens needs {show_bytes(least)} of memory, got "
            f"{show_bytes(memory)}; allow more or shorten the prompts"
        )
    pairs = max(1, min(_MOST_PAIRS, (memory - fixed) // 2 // one))
    most = max(variant_bytes(model, _STATE_ROWS), variant_bytes(model, length))
    return Budget(pairs, rows, min(most, memory - fixed - pairs * one))


def bucket_pairs(lengths: Sequence[int], budgets: dict[int, Budget]) -> list[tuple[int, ...]]:
    """Which pairs run together: those of one length, as many as fit."""
    by_length: dict[int, list[int]] = {}
    for index, length in enumerate(lengths):
        by_length.setdefault(length, []).append(index)
    return [
        tuple(indices[start : start + budgets[length].pairs])
        for length, indices in by_length.items()
        for start in range(0, len(indices), budgets[length].pairs)
    ]


def chunk_cells(
    model: StreamModel, cells: Sequence[Cell], length: int, state_bytes: int, *, suffixes: bool
) -> Iterator[list[Cell]]:
    """Cut cells into chunks whose streams fit; cells of one place stay together where they can."""
    chunk: list[Cell] = []
    left = state_bytes
    for cell in sorted(cells, key=_place):
        size = variant_bytes(model, length - cell.position if suffixes else length)
        if chunk and size > left:
            yield chunk
            chunk, left = [], state_bytes
        chunk.append(cell)
        left -= size
    if chunk:
        yield chunk


def _place(cell: Cell) -> tuple[int, int, int, int]:
    return cell.sequence, cell.position, cell.layer, cell.head or 0


def cell_layer_tokens(cell: Cell, length: int, n_layers: int, *, site: str, suffixes: bool) -> int:
    """Positions that go through a block for one cell, what it shares with others not counted."""
    begins = (
        cell.layer
        if site == "resid_pre" or (not suffixes and site != "resid_post")
        else (cell.layer + 1)
    )
    return (n_layers - begins) * (length - cell.position if suffixes else length)
