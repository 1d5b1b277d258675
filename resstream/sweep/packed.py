"""The layer-major executor: all variants that have begun go through a block as rows of one matrix.

A variant that begins at position p needs only the rows p, p+1, ... of its sequence; what lies
before is the base run's, whose keys and values stand in for it.  Variants of many sequences and
lengths are stood one after the other, so the matrix products are large and each weight is read
once a layer.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from resstream.stream.calls import first_tensor
from resstream.stream.model import Frame, StreamModel
from resstream.sweep.arguments import Arguments, NotPackableError, take_rows
from resstream.sweep.attention import Group, LooseAttention, last_rows
from resstream.sweep.last_rows import only_rows, row_module
from resstream.sweep.starts import HeardRun, Start

ROWS = 1024
"""Rows that go through a block at once: large products whose results still fit a cache."""
Place = tuple[int, int]
"""A sequence and a position in it."""
Chunk = list[tuple[Place, list[Tensor]]]
Progress = Callable[[int], None]
"""Told how many layer-tokens were just computed."""


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
    """

    model: StreamModel
    base: HeardRun
    axes: Arguments
    rows: int = ROWS
    progress: Progress | None = None

    @torch.no_grad()
    def run(self, starts: Sequence[Start]) -> Float[Tensor, "variant d_model"]:
        """The last stream of every variant at its last position.

        Args:
            starts: The variants, with indices ``0, 1, ...``.

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
            self._run_layer(stacks, layer)
        last = self.base.streams[-1]
        final = last.new_empty(len(starts), last.shape[-1])
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

    def _run_layer(self, stacks: dict[Place, _Stack], layer: int) -> None:
        last = layer == self.model.spec.n_layers - 1
        done: dict[Place, list[Tensor]] = {place: [] for place in stacks}
        for chunk in _chunks(stacks, self.rows):
            groups = [
                Group(place[0], place[1], sum(map(len, pieces)), self.base.length)
                for place, pieces in chunk
            ]
            parts = [piece.flatten(0, 1) for _, pieces in chunk for piece in pieces]
            after = self.run_rows(layer, torch.cat(parts)[None], groups, last_only=last)
            sizes = [group.count * group.rows for group in groups]
            for group, (place, _), own in zip(groups, chunk, after.split(sizes), strict=True):
                done[place].append(own.unflatten(0, (group.count, group.rows)))
        for place, stack in stacks.items():
            stack.pieces = done[place]

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


def _row_places(groups: Sequence[Group], device: torch.device) -> tuple[Tensor, Tensor]:
    """The sequence and the position of each row, as lists first: groups are many and small."""
    sequences: list[int] = []
    positions: list[int] = []
    for one in groups:
        sequences += [one.sequence] * (one.count * one.rows)
        positions += [*range(one.start, one.length)] * one.count
    return torch.tensor(sequences, device=device), torch.tensor(positions, device=device)
