"""Run changed sequences layer by layer: base and begun variants as one growing batch.

The layers are walked once.  At each layer the base goes through the block, then the variants that
differ from it, many sequences at a time; those that begin here start from the base's stream.  Where
all that a block writes for a variant is known beforehand, its writes are added up and the block is
not run: a variant that lacks only the last write of a block begins behind it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from resstream.stream.calls import BlockCall
from resstream.stream.model import Frame, StreamModel
from resstream.stream.spec import BlockSpec, StreamSpec
from resstream.sweep.packed import Progress
from resstream.sweep.patches import at_edit, only_adds
from resstream.sweep.variants import Edit, Variant

BASE = -1
"""Stands for the base run where variants are counted."""
End = tuple[int, Float[Tensor, "batch pos d_model"]]
"""Which variant (`BASE` for the unchanged run), and its last stream."""


@dataclass
class Walk:
    """The variants of one base run.

    Args:
        model: The model.
        tokens: Token ids of the base run.
        rows: How many positions go through a block at once (one variant at least).
        progress: Told about layer-tokens as they are computed.
    """

    model: StreamModel
    tokens: Int[Tensor, "batch pos"]
    rows: int
    progress: Progress | None = None
    _frames: dict[int, Frame] = field(default_factory=dict[int, Frame], init=False)
    _base: tuple[int, Tensor] | None = field(default=None, init=False)
    """The base's stream at the layer from which the next variants begin."""

    @property
    def at_once(self) -> int:
        """Variants that go through a block together."""
        return max(1, self.rows // self.tokens.numel())

    @torch.no_grad()
    def run(
        self, variants: dict[int, Variant], *, keep: int | None = None, with_base: bool = False
    ) -> Iterator[End]:
        """Run some variants to the end.

        Args:
            variants: By the number that they are named by in what is yielded.
            keep: A layer for which the base's stream is kept: later variants begin there.
            with_base: Run the base to the end as well and yield it first.
        """
        n_layers = self.model.spec.n_layers
        first = min((one.first_layer for one in variants.values()), default=0)
        start, base = self._base_at(first)
        last = max((one.last_layer for one in variants.values()), default=0)
        until = n_layers if with_base else max(last + 1, keep or 0)
        streams: dict[int, Tensor] = {}
        for layer in range(start, n_layers):
            if layer == keep:
                self._base = layer, base
            if layer < until:
                base = self._run_layer(layer, base, streams, variants)
            else:
                self._run_begun(layer, streams, list(streams), variants, {})
        if with_base:
            yield BASE, base
        while streams:
            yield streams.popitem()

    def _base_at(self, layer: int) -> tuple[int, Tensor]:
        """The base's stream before `layer`, from what was kept if that is near."""
        at, stream = self._base or (0, self._frame(1).stream)
        if at > layer:
            at, stream = 0, self._frame(1).stream
        while at < layer:
            stream = self._block(at, stream, 1)
            at += 1
        return at, stream

    def _run_layer(
        self,
        layer: int,
        base: Tensor,
        streams: dict[int, Tensor],
        variants: dict[int, Variant],
    ) -> Tensor:
        """One block for the base, for what has begun, and for what begins here."""
        block = self.model.spec.blocks[layer]
        begin = [index for index, one in variants.items() if one.first_layer == layer]
        edits = [edit for one in variants.values() for edit in one.edits_in(layer)]
        short = [index for index in begin if _begins_behind(block, variants[index].edits_in(layer))]
        sites = {edit.site for edit in edits}
        if short:
            sites |= {write.site for write in block.writes}
        known: dict[str, Tensor] = {}
        with self._keeping(sites, known):
            after = self._block(layer, base, 1)
        through: list[int] = []
        for index in streams:
            own = variants[index].edits_in(layer)
            if _all_known(block, own):
                streams[index] = _added(block, streams[index], own, known)
            else:
                through.append(index)
        streams |= {index: base for index in begin if index not in short}
        through += [index for index in begin if index not in short]
        self._run_begun(layer, streams, through, variants, known)
        for index in short:
            streams[index] = _added(block, base, variants[index].edits_in(layer), known)
        return after

    def _run_begun(
        self,
        layer: int,
        streams: dict[int, Tensor],
        through: Sequence[int],
        variants: dict[int, Variant],
        known: dict[str, Tensor],
    ) -> None:
        """Put the streams of `through` through a block, some at a time."""
        for start in range(0, len(through), self.at_once):
            chunk = through[start : start + self.at_once]
            edits = [
                (slot, edit)
                for slot, index in enumerate(chunk)
                for edit in variants[index].edits_in(layer)
            ]
            with self._editing(edits, known, len(self.tokens)):
                joined = torch.cat([streams[index] for index in chunk])
                after = self._block(layer, joined, len(chunk))
            parts = after.split(len(self.tokens))
            streams.update(zip(chunk, parts, strict=True))

    def _block(self, layer: int, stream: Tensor, count: int) -> Tensor:
        after = self.model.run_block(layer, stream, self._frame(count))
        if self.progress is not None:
            self.progress(stream.shape[0] * stream.shape[1])
        return after

    def _frame(self, count: int) -> Frame:
        """What blocks are called with for `count` copies of the tokens."""
        if count not in self._frames:
            frame = self.model.begin(self.tokens.repeat(count, 1))
            self._frames[count] = frame if count == 1 else _without_streams(frame)
        return self._frames[count]

    @contextmanager
    def _keeping(self, sites: set[str], known: dict[str, Tensor]) -> Iterator[None]:
        def keep(site: str) -> Callable[[Tensor], None]:
            # A copy: some models go on to change the tensor in place.
            return lambda value: known.update({site: value.clone()})

        with ExitStack() as stack:
            for site in sites:
                stack.enter_context(at_edit(self.model, site, keep(site)))
            yield

    @contextmanager
    def _editing(
        self, edits: Sequence[tuple[int, Edit]], known: dict[str, Tensor], n_sequences: int
    ) -> Iterator[None]:
        """Edit each variant's own sequences of a batch of several variants."""

        def change(site: str) -> Callable[[Tensor], Tensor]:
            def run(value: Tensor) -> Tensor:
                changed = value.clone()
                for slot, edit in edits:
                    if edit.site == site:
                        own = slice(slot * n_sequences, (slot + 1) * n_sequences)
                        changed[own] = edit.change(changed[own], known[site])
                return changed

            return run

        with ExitStack() as stack:
            for site in dict.fromkeys(edit.site for _, edit in edits):
                stack.enter_context(at_edit(self.model, site, change(site)))
            yield


def _without_streams(frame: Frame) -> Frame:
    """The same without the embedding, which only the base starts from."""
    none = frame.stream.new_empty(0)
    calls = (BlockCall(*call.with_stream(none), call.key) for call in frame.calls)
    return Frame(none, tuple(calls))


def _adds_up(block: BlockSpec, edits: Sequence[Edit]) -> bool:
    """True if the block only adds its writes, and only writes are edited."""
    sites = {write.site for write in block.writes}
    return only_adds(block) and all(edit.site in sites for edit in edits)


def _begins_behind(block: BlockSpec, edits: Sequence[Edit]) -> bool:
    """True if a variant that is the base's up to this block is known behind it.

    So it is if no write that comes after an edited one depends on it, or if that is replaced too.
    """
    if not _adds_up(block, edits):
        return False
    edited = {edit.site: edit.fixed for edit in edits}
    order = [write.site for write in block.writes]
    if block.parallel or len(order) == 1:
        return True
    first = min(order.index(site) for site in edited)
    return all(edited.get(site, False) for site in order[first + 1 :])


def _all_known(block: BlockSpec, edits: Sequence[Edit]) -> bool:
    """True if every write of the block is replaced by something that is known."""
    sites = {edit.site for edit in edits if edit.fixed}
    return _adds_up(block, edits) and sites == {write.site for write in block.writes}


def _added(
    block: BlockSpec, stream: Tensor, edits: Sequence[Edit], known: dict[str, Tensor]
) -> Tensor:
    """The stream behind a block whose writes are the base's but for `edits`."""
    changes = {edit.site: edit.change for edit in edits}
    for write in block.writes:
        value = known[write.site]
        change = changes.get(write.site)
        stream = stream + (value if change is None else change(value, value))
    return stream


def group_variants(variants: Sequence[Variant], at_most: int) -> list[tuple[int, ...]]:
    """Which variants run together: neighbours in the order in which they begin.

    One group of none where there are no variants: the base alone.
    """
    order = sorted(range(len(variants)), key=lambda index: variants[index].first_layer)
    return [tuple(order[at : at + at_most]) for at in range(0, len(order), at_most)] or [()]


def keeps_for(variants: Sequence[Variant], groups: Sequence[Sequence[int]]) -> list[int | None]:
    """For each group the layer at which the next one begins; None behind the last."""
    firsts = [min((variants[index].first_layer for index in group), default=0) for group in groups]
    return [*firsts[1:], None]


def blocks_walked(
    spec: StreamSpec, variants: Sequence[Variant], groups: Sequence[Sequence[int]]
) -> int:
    """How many times a batch goes through a block in all, the base included."""
    count = start = 0
    for group, keep in zip(groups, keeps_for(variants, groups), strict=True):
        last = max((variants[index].last_layer for index in group), default=0)
        until = spec.n_layers if keep is None else max(last + 1, keep)
        count += until - start + sum(_own_blocks(spec, variants[index]) for index in group)
        start = spec.n_layers if keep is None else keep
    return count


def _own_blocks(spec: StreamSpec, variant: Variant) -> int:
    """Through how many blocks a variant goes by itself."""
    first = variant.first_layer
    count = 0
    for block in spec.blocks[first:]:
        edits = variant.edits_in(block.layer)
        begins = block.layer == first and _begins_behind(block, edits)
        count += not (begins or _all_known(block, edits))
    return count
