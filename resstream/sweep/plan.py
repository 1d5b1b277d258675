"""What a patching sweep will compute, in which chunks, and what it saves: known before it runs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from resstream.errors import ConfigError
from resstream.sweep.memory import PairCosts, show_bytes, stream_bytes
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


def share_memory(costs: PairCosts, memory: int) -> Budget:
    """Share `memory` out for pairs of one length.

    Raises:
        ConfigError: It is not enough for one pair.
    """
    least = costs.peak(1, costs.variant(0))
    if memory < least:
        raise ConfigError(
            f"a pair of {costs.length} tokens needs {show_bytes(least)} of memory, got "
            f"{show_bytes(memory)}; allow more or shorten the prompts"
        )
    most = max(2 * stream_bytes(costs.model, _STATE_ROWS), costs.variant(0))
    fitting = (n for n in range(_MOST_PAIRS, 1, -1) if costs.peak(n, most) <= memory)
    pairs = next(fitting, 1)
    return Budget(pairs, costs.rows, min(most, memory - pairs * costs.pair - costs.chunk))


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


def chunk_cells(costs: PairCosts, cells: Sequence[Cell], state_bytes: int) -> Iterator[list[Cell]]:
    """Cut cells into chunks whose streams fit; cells of one place stay together where they can."""
    chunk: list[Cell] = []
    left = state_bytes
    for cell in sorted(cells, key=_place):
        size = costs.variant(cell.position)
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
