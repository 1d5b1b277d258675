"""Patch every cell of pairs: bucket by bucket, chunk by chunk, measured as it goes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from time import monotonic

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from resstream.stream.model import StreamModel
from resstream.sweep.activations import fast_activations
from resstream.sweep.arguments import NotPackableError, probe_tokens
from resstream.sweep.cells import PairRun, run_cells, run_pairs, without_no_ops
from resstream.sweep.journal import Journal
from resstream.sweep.memory import PairCosts, free_memory
from resstream.sweep.metrics import Direction, Meter, Metric
from resstream.sweep.packed import ROWS
from resstream.sweep.patches import Cell, head_count, head_slices, patched_layers
from resstream.sweep.plan import (
    Budget,
    SweepPlan,
    bucket_pairs,
    cell_layer_tokens,
    chunk_cells,
    share_memory,
)
from resstream.sweep.prefix import PrefixProof, prove_prefix

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class TokenPair:
    """A pair as the sweep needs it: token ids ``[pos]`` and the answers' ids."""

    clean: Tensor
    corrupted: Tensor
    answer: int
    wrong: int
    first_difference: int
    noise: Float[Tensor, "pos d_model"] | None = None
    """Added to the embedding of the corrupted run."""


@dataclass(slots=True)
class PairPatch:
    """What patching one pair gave."""

    clean: float
    """The metric of the clean run."""
    corrupted: float
    patched: Float[np.ndarray, "layer pos head"]
    """The metric with each cell patched; one head where heads are not taken apart.  NaN for layers
    that lack the site, and for cells that were not asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridOptions:
    """What a sweep leaves to the caller."""

    layers: Sequence[int] | None = None
    """Only these; all that have the site if None."""
    skip_unchanged: bool = True
    """Answer cells that can't change anything without computing them."""
    memory: int | None = None
    """Bytes that the sweep may take beside the model; half of what is free if None."""
    only: Sequence[frozenset[tuple[int, int, int | None]]] | None = None
    """By pair, the cells (layer, position, head) to run; all if None."""


@dataclass(slots=True)
class GridRun:
    """What a grid gave."""

    pairs: list[PairPatch]
    computed: int = 0
    skipped: int = 0
    layer_tokens: int = 0
    """Positions that went through a block, the unchanged runs included."""


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Pairs that run together."""

    name: str
    indices: tuple[int, ...]
    run: PairRun
    meter: Meter


class Grid:
    """A patching sweep over layers and positions, ready to be planned and run.

    Args:
        model: A causal language model.
        pairs: What is patched.
        site: Where.
        metric: What is measured.
        direction: Which run is patched into.
        options: Layers, memory and the like.

    Raises:
        UnknownSiteError: The architecture has no such site.
        ConfigError: The memory is too little.
    """

    def __init__(
        self,
        model: StreamModel,
        pairs: Sequence[TokenPair],
        *,
        site: str,
        metric: Metric,
        direction: Direction,
        options: GridOptions,
    ) -> None:
        self.model, self.pairs = model, pairs
        self.site: str = site
        self.metric: Metric = metric
        self.direction: Direction = direction
        self.options = options
        have = patched_layers(model, site)
        wanted = have if options.layers is None else set(options.layers)
        self.layers = tuple(layer for layer in have if layer in wanted)
        self.n_heads = head_count(model) if site == "head_out" else None
        self.proof = prove_prefix(model)
        self.memory = options.memory or free_memory(model.device)
        self.costs = {
            length: self._costs(length) for length in sorted({len(pair.clean) for pair in pairs})
        }
        self.budgets = self._share(self.memory)

    def _share(self, memory: int) -> dict[int, Budget]:
        return {length: share_memory(costs, memory) for length, costs in self.costs.items()}

    def _costs(self, length: int) -> PairCosts:
        width = 0 if self.site in ("resid_pre", "resid_post") else self.model.spec.d_model
        if self.site == "head_out":
            width = head_slices(self.model, self.layers[0])[-1].stop
        return PairCosts(
            self.model,
            length,
            kept_channels=width * len(self.layers),
            kv_channels=self.proof.kv_channels,
            cells=len(self.layers) * length * (self.n_heads or 1),
            suffixes=self.proof.proved,
        )

    def restricted(self, only: Sequence[frozenset[tuple[int, int, int | None]]]) -> "Grid":
        """The same sweep for some cells of each pair (layer, position, head)."""
        return Grid(
            self.model,
            self.pairs,
            site=self.site,
            metric=self.metric,
            direction=self.direction,
            options=replace(self.options, only=only),
        )

    def settle(self, journal: Journal, plan: dict[str, object]) -> None:
        """Take over the memory, and so the chunks, of a sweep that was begun.

        Raises:
            ConfigError: Another sweep was begun there.
        """
        self.memory = journal.settle(plan, self.memory)
        self.budgets = self._share(self.memory)

    def plan(self) -> SweepPlan:
        """How much there is to do, as far as the tokens tell."""
        n_layers, heads = self.model.spec.n_layers, self.n_heads or 1
        suffixes = self.proof.proved
        computed = tokens = memory = 0
        for pair in self.pairs:
            length = len(pair.clean)
            first = pair.first_difference if self.options.skip_unchanged else 0
            state = 0
            tokens += 2 * n_layers * length
            for layer, position in product(self.layers, range(first, length)):
                tokens += heads * cell_layer_tokens(
                    Cell(0, layer, position), length, n_layers, site=self.site, suffixes=suffixes
                )
                state += heads * self.costs[length].variant(position)
            computed += len(self.layers) * (length - first) * heads
            memory = max(memory, self._bytes(length, state))
        lengths = [len(pair.clean) for pair in self.pairs]
        return SweepPlan(
            variants=len(self.layers) * heads * sum(lengths),
            computed=computed,
            layer_tokens=tokens,
            naive_layer_tokens=len(self.layers) * heads * n_layers * sum(n * n for n in lengths),
            memory_bytes=memory,
            suffixes=suffixes,
            reason=self.proof.reason,
        )

    def estimate_seconds(self) -> float:
        """How long it will take here, from the time of one block on as many positions as fit."""
        rows = max(2, min(ROWS, self.plan().layer_tokens))
        tokens = probe_tokens(self.model, 2, rows // 2)
        with torch.no_grad():
            frame = self.model.begin(tokens[:, : max(len(pair.clean) for pair in self.pairs)])
            began = monotonic()
            self.model.run_block(0, frame.stream, frame)
            spent = monotonic() - began
        return spent / frame.stream[..., 0].numel() * self.plan().layer_tokens

    def _bytes(self, length: int, state: int) -> int:
        budget = self.budgets[length]
        count = min(budget.pairs, sum(len(pair.clean) == length for pair in self.pairs))
        return self.costs[length].peak(count, min(budget.state_bytes, count * state))

    def run(self, *, journal: Journal | None = None, progress: Progress | None = None) -> GridRun:
        """Run it, keeping finished chunks in `journal`."""
        done = GridRun([PairPatch(np.nan, np.nan, np.empty((0, 0, 0))) for _ in self.pairs])
        total = self.plan().layer_tokens if progress is not None else 0

        def count(tokens: int) -> None:
            done.layer_tokens += tokens
            if progress is not None:
                progress(min(done.layer_tokens, total), total)

        buckets = bucket_pairs([len(pair.clean) for pair in self.pairs], self.budgets)
        for number, indices in enumerate(buckets):
            with fast_activations(self.model.module):
                self._run_bucket(f"bucket{number}", indices, done, journal, count)
        if progress is not None:
            progress(total, total)
        return done

    def _run_bucket(
        self,
        name: str,
        indices: tuple[int, ...],
        done: GridRun,
        journal: Journal | None,
        count: Callable[[int], None],
    ) -> None:
        try:
            self._run_cells(self._begin(name, indices, done, count), done, journal, count)
        except NotPackableError as err:
            # Proved on short inputs, but these are of another kind: whole sequences then.
            self.proof = PrefixProof(False, str(err), self.proof.error, ())
            self._run_cells(self._begin(name, indices, done, count), done, journal, count)

    def _begin(
        self, name: str, indices: tuple[int, ...], done: GridRun, count: Callable[[int], None]
    ) -> _Bucket:
        """Run the pairs unchanged; until more is known each cell has the unchanged metric."""
        model, pairs = self.model, [self.pairs[index] for index in indices]
        clean = torch.stack([pair.clean for pair in pairs])
        corrupted = torch.stack([pair.corrupted for pair in pairs])
        denoising = self.direction == "denoising"
        target, source = (corrupted, clean) if denoising else (clean, corrupted)
        run = run_pairs(
            model, target, source, site=self.site, layers=self.layers, suffixes=self.proof.proved,
            noise=_noise(model, pairs, denoising=denoising),
        )  # fmt: skip
        count(2 * clean.numel() * model.spec.n_layers)
        ends = run.final.split(len(pairs))
        answers, wrongs = [pair.answer for pair in pairs], [pair.wrong for pair in pairs]
        meter = Meter(model, self.metric, answers, wrongs, ends[1] if denoising else ends[0])
        own = range(len(pairs))
        before, other = meter(ends[0], own), meter(ends[1], own)
        for local, index in enumerate(indices):
            one, two = (other, before) if denoising else (before, other)
            blank = np.full((model.spec.n_layers, clean.shape[1], self.n_heads or 1), np.nan)
            for cell in self._cells_of(index):
                blank[cell.layer, cell.position, cell.head or 0] = before[local]
            done.pairs[index] = PairPatch(float(one[local]), float(two[local]), blank)
        return _Bucket(name, indices, run, meter)

    def _cells_of(self, index: int, sequence: int = 0) -> list[Cell]:
        """What is asked for of one pair."""
        if self.options.only is not None:
            chosen = sorted(self.options.only[index], key=str)
            return [Cell(sequence, *place) for place in chosen]
        heads = (None,) if self.n_heads is None else range(self.n_heads)
        positions = range(len(self.pairs[index].clean))
        return [Cell(sequence, *place) for place in product(self.layers, positions, heads)]

    def _run_cells(
        self,
        bucket: _Bucket,
        done: GridRun,
        journal: Journal | None,
        count: Callable[[int], None],
    ) -> None:
        run, model = bucket.run, self.model
        cells = [
            cell
            for local, index in enumerate(bucket.indices)
            for cell in self._cells_of(index, local)
        ]
        active = cells
        if self.options.skip_unchanged:
            firsts = [self.pairs[index].first_difference for index in bucket.indices]
            active = without_no_ops(run, cells, firsts, self.n_heads, model.spec.n_layers)
        done.computed += len(active)
        done.skipped += len(cells) - len(active)
        budget, length = self.budgets[run.base.length], run.base.length
        chunks = chunk_cells(self._costs(length), active, budget.state_bytes)
        for number, chunk in enumerate(chunks):
            key = f"{bucket.name}.chunk{number}"
            values = None if journal is None else journal.get(key)
            if values is None or len(values) != len(chunk):
                streams = run_cells(
                    model, run, chunk, self.proof.axes, rows=budget.rows, progress=count
                )
                values = bucket.meter(streams, [cell.sequence for cell in chunk])
                if journal is not None:
                    journal.put(key, values)
            for cell, value in zip(chunk, values, strict=True):
                place = (cell.layer, cell.position, cell.head or 0)
                done.pairs[bucket.indices[cell.sequence]].patched[place] = value


def _noise(
    model: StreamModel, pairs: Sequence[TokenPair], *, denoising: bool
) -> Float[Tensor, "twice_pair pos d_model"] | None:
    """What is added to the embedding of all runs; the corrupted ones come first to be denoised."""
    if all(pair.noise is None for pair in pairs):
        return None
    none = torch.zeros(len(pairs[0].clean), model.spec.d_model)
    corrupted = [none if pair.noise is None else pair.noise.cpu() for pair in pairs]
    clean = [none] * len(pairs)
    return torch.stack(corrupted + clean if denoising else clean + corrupted)
