"""Run the cells of a patching sweep: by suffixes where that is proved, else as whole sequences."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from resstream.stream.model import StreamModel
from resstream.stream.sites import block_site
from resstream.sweep.arguments import Arguments
from resstream.sweep.attention import Group
from resstream.sweep.packed import ROWS, Opening, Progress, Suffixes
from resstream.sweep.patches import (
    Cell,
    at_site,
    head_slice,
    is_last_word,
    replacing,
    replacing_at,
)
from resstream.sweep.starts import HeardRun, Start, hear_base


@dataclass(frozen=True, slots=True)
class PairRun:
    """The two runs of some pairs: rows ``0..n-1`` are patched, ``n..2n-1`` are taken from."""

    base: HeardRun
    n_pairs: int
    site: str

    def source(self, layer: int) -> Float[Tensor, "pair pos channel"]:
        """The values that are put in."""
        return self._site_values(layer)[self.n_pairs :]

    def target(self, layer: int) -> Float[Tensor, "pair pos channel"]:
        """The values that they replace."""
        return self._site_values(layer)[: self.n_pairs]

    def _site_values(self, layer: int) -> Tensor:
        match self.site:
            case "resid_pre":
                return self.base.streams[layer]
            case "resid_post":
                return self.base.streams[layer + 1]
            case _:
                return self.base.values[layer]

    @property
    def final(self) -> Float[Tensor, "twice_pair d_model"]:
        """The last stream at the last position of both runs of every pair."""
        return self.base.streams[-1][:, -1]


def run_pairs(  # noqa: PLR0913  (two runs, and what of them is kept)
    model: StreamModel,
    target: Tensor,
    source: Tensor,
    *,
    site: str,
    layers: Sequence[int],
    suffixes: bool,
    noise: Float[Tensor, "twice_pair pos d_model"] | None = None,
) -> PairRun:
    """The unchanged runs of pairs of one length, ``[pair, pos]`` both.

    Args:
        model: The model.
        target: Tokens of the runs that are patched.
        source: Tokens of the runs that values are taken from.
        site: What is patched, in `layers`.
        layers: See `site`.
        suffixes: Keep what variants need to run as suffixes.
        noise: Added to the embedding of target and source runs.
    """
    kept = None if site in ("resid_pre", "resid_post") else site
    both = torch.cat([target, source]).to(model.device)
    base = hear_base(
        model,
        both,
        site=kept,
        layers=layers,
        attention=len(target) if suffixes else 0,
        noise=noise,
    )
    return PairRun(base, len(target), site)


def without_no_ops(
    run: PairRun, cells: Sequence[Cell], firsts: Sequence[int], n_heads: int | None, n_layers: int
) -> list[Cell]:
    """The cells that can change the answer; the others need not be computed.

    A cell can't if its position comes before the first differing token (`firsts`, by pair) of a
    causal model, if both runs have the same value there, or if nothing reads it any more because
    only the last position is read out.
    """
    differs: dict[int, Tensor] = {}
    for layer in {cell.layer for cell in cells}:
        unequal = run.source(layer) != run.target(layer)
        heads = unequal if n_heads is None else unequal.unflatten(-1, (n_heads, -1))
        differs[layer] = heads.any(-1).cpu()
    last = run.base.length - 1

    def matters(cell: Cell) -> bool:
        unread = cell.layer == n_layers - 1 and run.site != "resid_pre" and cell.position < last
        if unread or cell.position < firsts[cell.sequence]:
            return False
        differing = differs[cell.layer][cell.sequence, cell.position]
        return bool(differing if cell.head is None else differing[cell.head])

    return [cell for cell in cells if matters(cell)]


def run_cells(
    model: StreamModel,
    run: PairRun,
    cells: Sequence[Cell],
    axes: Arguments,
    *,
    rows: int = ROWS,
    progress: Progress | None = None,
) -> Float[Tensor, "cell d_model"]:
    """The last stream at the last position with each cell patched.

    Args:
        model: The model.
        run: The two runs of the pairs.
        cells: What is patched.
        axes: From the proof that suffixes can be run alone; empty runs whole sequences.
        rows: How many positions go through a block at once.
        progress: Told about layer-tokens as they are computed.
    """
    if axes:
        suffixes = Suffixes(model, run.base, axes, rows, progress, run.site)
        starts: list[Start] = []
        openings: list[Opening] = []
        for layer, indices in _by_layer(cells).items():
            own = {i: cells[i] for i in indices}
            rows_known = _known_rows(model, run, layer, list(own.values()))
            if rows_known is None:
                openings += _openings(model, run, layer, own)
            else:
                begins = layer if run.site == "resid_pre" else layer + 1
                starts += map(partial(_start, begins), own, own.values(), rows_known)
        return suffixes.run(starts, openings)
    return _run_whole(model, run, cells, rows, progress)


def _by_layer(cells: Sequence[Cell]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for index, cell in enumerate(cells):
        found.setdefault(cell.layer, []).append(index)
    return found


def _start(layer: int, index: int, cell: Cell, row: Tensor) -> Start:
    return Start(index, cell.sequence, layer, cell.position, row)


def _known_rows(
    model: StreamModel, run: PairRun, layer: int, cells: Sequence[Cell]
) -> Float[Tensor, "cell d_model"] | None:
    """What the stream becomes at each cell of one layer, if that is known without a run.

    A write that nothing else of its block depends on is replaced in the sum.
    """
    places = ([cell.sequence for cell in cells], [cell.position for cell in cells])
    if run.site in ("resid_pre", "resid_post"):
        return run.source(layer)[places]
    if is_last_word(model.spec.blocks[layer], block_site(layer, run.site)):
        change = run.source(layer)[places] - run.target(layer)[places]
        return run.base.streams[layer + 1][places] + change
    return None


def _openings(
    model: StreamModel, run: PairRun, layer: int, cells: dict[int, Cell]
) -> Iterator[Opening]:
    """Where the cells of one layer begin inside of its block, each head by itself."""
    source, length = run.source(layer), run.base.length
    for head in sorted({cell.head for cell in cells.values()}, key=lambda head: head or 0):
        own = {index: cell for index, cell in cells.items() if cell.head == head}
        firsts: dict[int, int] = {}
        for cell in own.values():
            firsts[cell.sequence] = min(cell.position, firsts.get(cell.sequence, length))
        groups = [Group(sequence, first, 1, length) for sequence, first in firsts.items()]
        channels = head_slice(model, source.shape[-1], head)
        stream = run.base.streams[layer]
        yield Opening(
            [
                _start(layer, i, cell, stream[cell.sequence, cell.position])
                for i, cell in own.items()
            ],
            partial(_replaced, source, groups, channels),
            groups,
        )


def _replaced(source: Tensor, groups: Sequence[Group], channels: slice, value: Tensor) -> Tensor:
    """The value at a site with those channels of `source` in it, at all rows of `groups`."""
    values = torch.cat([source[group.sequence, group.start :] for group in groups])[None]
    return replacing(values, channels)(value)


@torch.no_grad()
def _run_whole(
    model: StreamModel,
    run: PairRun,
    cells: Sequence[Cell],
    rows: int,
    progress: Progress | None,
) -> Float[Tensor, "cell d_model"]:
    width = run.base.streams[-1].shape[-1]
    final = run.base.streams[-1].new_empty(len(cells), width)
    step = max(1, rows // run.base.length)
    for layer, indices in _by_layer(cells).items():
        for head in sorted({cells[i].head for i in indices}, key=lambda head: head or 0):
            own = [i for i in indices if cells[i].head == head]
            for at in range(0, len(own), step):
                chunk = own[at : at + step]
                final[chunk] = _run_chunk(model, run, layer, [cells[i] for i in chunk])
                if progress is not None:
                    begins = layer + (run.site == "resid_post")
                    progress(len(chunk) * run.base.length * (model.spec.n_layers - begins))
    return final


def _run_chunk(
    model: StreamModel, run: PairRun, layer: int, cells: Sequence[Cell]
) -> Float[Tensor, "cell d_model"]:
    """Whole sequences of one layer and head, from the block that is changed to the end."""
    sequences = torch.tensor([cell.sequence for cell in cells], device=model.device)
    positions = torch.tensor([cell.position for cell in cells], device=model.device)
    values = run.source(layer)[sequences, positions]
    change = replacing_at(values, positions, head_slice(model, values.shape[-1], cells[0].head))
    frame = model.begin(run.base.tokens[sequences])
    if run.site in ("resid_pre", "resid_post"):
        begins = layer + (run.site == "resid_post")
        stream = change(run.base.streams[begins][sequences])
    else:
        begins = layer + 1
        with at_site(model, layer, run.site, change):
            stream = model.run_block(layer, run.base.streams[layer][sequences], frame)
    for later in range(begins, model.spec.n_layers):
        stream = model.run_block(later, stream, frame)
    return stream[:, -1]
