"""The layer-major executor: all variants that have begun go through a block as rows of one matrix.

A variant that begins at position p needs only the rows p, p+1, ... of its sequence; what lies
before is the base run's, whose keys and values stand in for it.  Variants of many sequences and
lengths are stood one after the other, so the matrix products are large and each weight is read
once a layer.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor

from resstream.stream.calls import first_tensor
from resstream.stream.model import Frame, StreamModel
from resstream.sweep.arguments import Arguments, NotPackableError, take_rows
from resstream.sweep.attention import Group, LooseAttention, last_rows
from resstream.sweep.last_rows import only_rows, row_module
from resstream.sweep.patches import at_site
from resstream.sweep.starts import HeardRun, Start

ROWS = 1024
"""Rows that go through a block at once: large products whose results still fit a cache."""
Place = tuple[int, int]
"""A sequence and a position in it."""
Chunk = list[tuple[Place, list[Tensor]]]
Progress = Callable[[int], None]
"""Told how many layer-tokens were just computed."""


@dataclass(frozen=True, slots=True)
class Opening:
    """Variants that begin inside a block, each at a position of its own.

    Behind attention every position is on its own, so one run of the block on the base's stream
    with all positions of a site changed gives each variant its row.
    """

    starts: Sequence[Start]
    """The variants; their rows are those of the base and not used."""
    change: Callable[[Tensor], Tensor]
    """From the value at the site to what takes its place, ``[1, row, channel]`` both."""
    groups: Sequence[Group]
    """What the rows are: each sequence from its first changed position on."""

    @property
    def n_rows(self) -> int:
        """How many rows it adds to a run of the block."""
        return sum(group.rows for group in self.groups)


@dataclass(slots=True)
class _Stack:
    """Variants that began at one place; `pieces` are ``[variant, pos, d_model]``, in order."""

    indices: list[int] = field(default_factory=list[int])
    pieces: list[Tensor] = field(default_factory=list[Tensor])


@dataclass(frozen=True, slots=True)
class Suffixes:
    """Runs the suffixes of variants of one base run.

    Args:
        model: The model; its prefix proof holds.
        base: The base run.
        axes: What the arguments of the blocks count, by layer.
        rows: How many rows go through a block at once.
        progress: Told after each call of a block.
        site: Where openings change their block.
    """

    model: StreamModel
    base: HeardRun
    axes: Arguments
    rows: int = ROWS
    progress: Progress | None = None
    site: str = ""

    @torch.no_grad()
    def run(
        self, starts: Sequence[Start], openings: Sequence[Opening] = ()
    ) -> Float[Tensor, "variant d_model"]:
        """The last stream of every variant at its last position.

        Args:
            starts: The variants that begin before a block.
            openings: Those that begin inside of one.  Together they have the indices ``0, 1, ...``.

        Raises:
            NotPackableError: A block can't be run on loose rows of these inputs.
        """
        waiting: dict[int, list[Start]] = {}
        for start in starts:
            waiting.setdefault(start.layer, []).append(start)
        stacks: dict[Place, _Stack] = {}
        n_layers = self.model.spec.n_layers
        for layer in range(n_layers):
            self._join(stacks, waiting.pop(layer, []))
            own = [one for one in openings if one.starts[0].layer == layer]
            waiting.setdefault(layer + 1, []).extend(self._run_layer(stacks, layer, own))
        last = self.base.streams[-1]
        count = len(starts) + sum(len(opening.starts) for opening in openings)
        final = last.new_empty(count, last.shape[-1])
        for stack in stacks.values():
            at = torch.tensor(stack.indices, device=final.device)
            final[at] = torch.cat([piece[:, -1] for piece in stack.pieces])
        for start in waiting.pop(n_layers, []):
            is_last = start.position == self.base.length - 1
            final[start.index] = start.row if is_last else last[start.sequence, -1]
        return final

    def _join(self, stacks: dict[Place, _Stack], starts: Sequence[Start]) -> None:
        """Variants that begin here start from the base's stream with their own row in it."""
        together: dict[Place, list[Start]] = {}
        for start in starts:
            together.setdefault((start.sequence, start.position), []).append(start)
        for (sequence, position), group in together.items():
            before = self.base.streams[group[0].layer][sequence, position:]
            stream = before.expand(len(group), -1, -1).clone()
            stream[:, 0] = torch.stack([start.row for start in group])
            stack = stacks.setdefault((sequence, position), _Stack())
            stack.indices += [start.index for start in group]
            stack.pieces.append(stream)

    def _run_layer(
        self, stacks: dict[Place, _Stack], layer: int, openings: Sequence[Opening]
    ) -> list[Start]:
        """One block for all that has begun; gives what begins inside of it."""
        last = layer == self.model.spec.n_layers - 1
        done: dict[Place, list[Tensor]] = {place: [] for place in stacks}
        begun: list[Start] = []
        for chunk, opened in _shared(_chunks(stacks, self.rows), openings, self.rows):
            groups = [
                Group(place[0], place[1], sum(map(len, pieces)), self.base.length)
                for place, pieces in chunk
            ]
            parts = [piece.flatten(0, 1) for _, pieces in chunk for piece in pieces]
            sizes = [group.count * group.rows for group in groups]
            added = [group for opening in opened for group in opening.groups]
            before = self.base.streams[layer]
            parts += [before[group.sequence, group.start :] for group in added]
            with self._changing(layer, opened, sum(sizes)):
                stream = torch.cat(parts)[None]
                after = self.run_rows(layer, stream, groups + added, last_only=last)
            own_rows = after[: sum(sizes)].split(sizes) if sizes else ()
            for group, (place, _), own in zip(groups, chunk, own_rows, strict=True):
                done[place].append(own.unflatten(0, (group.count, group.rows)))
            begun += _begun(opened, after[sum(sizes) :])
        for place, stack in stacks.items():
            stack.pieces = done[place]
        return begun

    @contextmanager
    def _changing(self, layer: int, openings: Sequence[Opening], offset: int) -> Iterator[None]:
        """Change the rows of openings, which stand behind `offset` others, at the site."""

        def change(value: Tensor) -> Tensor:
            changed = value.clone()
            at = offset
            for opening in openings:
                rows = slice(at, at + opening.n_rows)
                changed[:, rows] = opening.change(changed[:, rows])
                at = rows.stop
            return changed

        if not openings:
            yield
            return
        with at_site(self.model, layer, self.site, change):
            yield

    @torch.no_grad()
    def run_rows(
        self,
        layer: int,
        stream: Float[Tensor, "1 row d_model"],
        groups: Sequence[Group],
        *,
        last_only: bool = False,
    ) -> Float[Tensor, "row d_model"]:
        """One block on the rows of `groups`."""
        if stream.shape[1] == 1:
            # A sequence of one token is special to many attention implementations; two are not.
            doubled = [Group(one.sequence, one.start, 2, one.length) for one in groups]
            twice = stream.expand(-1, 2, -1)
            return self.run_rows(layer, twice, doubled, last_only=last_only)[:1]
        sequences, positions = _row_places(groups, stream.device)
        calls = self.base.frame.calls
        call = take_rows(calls[layer], self.axes[layer], sequences, positions)
        attention = LooseAttention(self.base.attention[layer], groups, last_only=last_only)
        with attention, self._narrowed(layer, groups, last_only=last_only):
            frame = Frame(stream, (*calls[:layer], call))
            output = first_tensor(self.model.run_block(layer, stream, frame))
        if output is None or output.shape != stream.shape or attention.calls != 1:
            raise NotPackableError(f"block {layer} calls attention {attention.calls} times")
        if self.progress is not None:
            self.progress(stream.shape[1])
        return output[0]

    def _narrowed(
        self, layer: int, groups: Sequence[Group], *, last_only: bool
    ) -> AbstractContextManager[None]:
        """The block's MLP on the last row of each variant alone, where it may be so."""
        path = row_module(self.model.spec.blocks[layer]) if last_only else None
        if path is None:
            return nullcontext()
        n_rows = sum(group.count * group.rows for group in groups)
        rows = last_rows(groups, self.model.device)
        return only_rows(self.model.module.get_submodule(path), rows, n_rows)


def _chunks(stacks: dict[Place, _Stack], rows: int) -> Iterator[Chunk]:
    """Split the stacks, in order of place, into at most `rows` rows (one variant at least)."""
    chunk: Chunk = []
    room = rows
    for place in sorted(stacks):
        for piece in stacks[place].pieces:
            left = piece
            while len(left):
                fit = max(0, room) // left.shape[1] or (0 if chunk else 1)
                if fit == 0:
                    yield chunk
                    chunk, room = [], rows
                    continue
                taken, left = left[:fit], left[fit:]
                room -= taken.shape[0] * taken.shape[1]
                if chunk and chunk[-1][0] == place:
                    chunk[-1][1].append(taken)
                else:
                    chunk.append((place, [taken]))
    if chunk:
        yield chunk


def _shared(
    chunks: Iterator[Chunk], openings: Sequence[Opening], rows: int
) -> Iterator[tuple[Chunk, list[Opening]]]:
    """Each chunk, and the openings that go with it: as many as there is room for, one at least."""
    left = list(openings)
    for chunk in chunks:
        room = rows - sum(len(piece) * piece.shape[1] for _, pieces in chunk for piece in pieces)
        yield chunk, _taken(left, room)
    while left:
        yield [], _taken(left, rows) or [left.pop(0)]


def _taken(openings: list[Opening], room: int) -> list[Opening]:
    """Take from the front of `openings` what fits."""
    taken: list[Opening] = []
    while openings and openings[0].n_rows <= room:
        room -= openings[0].n_rows
        taken.append(openings.pop(0))
    return taken


def _begun(openings: Sequence[Opening], rows: Float[Tensor, "row d_model"]) -> Iterator[Start]:
    """The variants of openings, behind the block that gave their rows."""
    offset = 0
    for opening in openings:
        ends: dict[int, int] = {}
        for group in opening.groups:
            offset += group.rows
            ends[group.sequence] = offset
        for one in opening.starts:
            row = rows[ends[one.sequence] - opening.groups[0].length + one.position]
            yield replace(one, layer=one.layer + 1, row=row)


def _row_places(groups: Sequence[Group], device: torch.device) -> tuple[Tensor, Tensor]:
    """The sequence and the position of each row, as lists first: groups are many and small."""
    sequences: list[int] = []
    positions: list[int] = []
    for one in groups:
        sequences += [one.sequence] * (one.count * one.rows)
        positions += [*range(one.start, one.length)] * one.count
    return torch.tensor(sequences, device=device), torch.tensor(positions, device=device)
