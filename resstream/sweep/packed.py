"""The layer-major executor: all variants that have begun go through a block as rows of one matrix.

A variant that begins at position p needs only the rows p, p+1, ... of its sequence; what lies before
is the base run's, whose keys and values stand in for it.  Variants of many sequences and lengths are
stood one after the other, so the matrix products are large and each weight is read once a layer.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from resstream.stream.calls import first_tensor
from resstream.stream.model import Frame, StreamModel
from resstream.sweep.arguments import Arguments, NotPackableError, take_rows
from resstream.sweep.attention import AttentionCall, Group, LooseAttention, hearing
from resstream.sweep.starts import HeardRun, Start

Place = tuple[int, int]
"""A sequence and a position in it."""
ROWS = 1024
"""Rows that go through a block at once: large matrix products whose results still fit a cache."""


@dataclass(slots=True)
class _Stack:
    """Variants that began at one place; `pieces` are ``[variant, pos, d_model]``, in order."""

    indices: list[int] = field(default_factory=list[int])
    pieces: list[Tensor] = field(default_factory=list[Tensor])


@torch.no_grad()
def hear_base(model: StreamModel, tokens: Tensor, *, heard_sequences: int | None = None) -> HeardRun:
    """Run `tokens` unchanged, keeping the streams and what attention was called with.

    Args:
        model: The model.
        tokens: Token ids ``[batch, pos]``.
        heard_sequences: For how many of the first sequences attention is kept; all if None.

    Raises:
        NotPackableError: A block does not call attention exactly once.
    """
    frame = model.begin(tokens)
    streams = [frame.stream]
    calls: list[AttentionCall] = []
    count = tokens.shape[0] if heard_sequences is None else heard_sequences
    for layer in range(model.spec.n_layers):
        with hearing() as heard:
            streams.append(model.run_block(layer, streams[-1], frame))
        if len(heard) != 1:
            raise NotPackableError(f"block {layer} calls attention {len(heard)} times, not once")
        calls.append(heard[0].of_sequences(count))
    return HeardRun(tokens, frame, tuple(streams), tuple(calls))


@torch.no_grad()
def run_suffixes(
    model: StreamModel,
    base: HeardRun,
    starts: Sequence[Start],
    axes: Arguments,
    *,
    rows: int = ROWS,
    progress: Callable[[int], None] | None = None,
) -> Float[Tensor, "variant d_model"]:
    """The last stream of every variant at its last position.

    Args:
        model: The model; its prefix proof holds.
        base: The base run.
        starts: The variants, with indices ``0, 1, ...``.
        axes: What the arguments of the blocks count.
        rows: How many rows go through a block at once.
        progress: Told the number of rows after each call of a block.
    """
    waiting: dict[int, list[Start]] = {}
    for start in starts:
        waiting.setdefault(start.layer, []).append(start)
    stacks: dict[Place, _Stack] = {}
    n_layers = model.spec.n_layers
    for layer in range(n_layers):
        _join(stacks, base, waiting.pop(layer, []))
        _run_layer(model, base, stacks, layer, axes[layer], rows, progress)
    final = base.streams[-1].new_empty(len(starts), base.streams[-1].shape[-1])
    for stack in stacks.values():
        at = torch.tensor(stack.indices, device=final.device)
        final[at] = torch.cat([piece[:, -1] for piece in stack.pieces])
    for start in waiting.pop(n_layers, []):
        is_last = start.position == base.length - 1
        final[start.index] = start.row if is_last else base.streams[-1][start.sequence, -1]
    return final


def _join(stacks: dict[Place, _Stack], base: HeardRun, starts: Sequence[Start]) -> None:
    """Variants that begin here start from the base's stream with their own row in it."""
    together: dict[Place, list[Start]] = {}
    for start in starts:
        together.setdefault((start.sequence, start.position), []).append(start)
    for (sequence, position), group in together.items():
        before = base.streams[group[0].layer][sequence, position:]
        stream = before.expand(len(group), -1, -1).clone()
        stream[:, 0] = torch.stack([start.row for start in group])
        stack = stacks.setdefault((sequence, position), _Stack())
        stack.indices += [start.index for start in group]
        stack.pieces.append(stream)


def _run_layer(
    model: StreamModel,
    base: HeardRun,
    stacks: dict[Place, _Stack],
    layer: int,
    axes: dict,
    rows: int,
    progress: Callable[[int], None] | None,
) -> None:
    last = layer == model.spec.n_layers - 1
    done: dict[Place, list[Tensor]] = {place: [] for place in stacks}
    for chunk in _chunks(stacks, rows):
        groups = [
            Group(place[0], place[1], sum(map(len, pieces)), base.length) for place, pieces in chunk
        ]
        parts = [piece for _, pieces in chunk for piece in pieces]
        stream = torch.cat([part.flatten(0, 1) for part in parts])[None]
        after = run_rows(model, base, layer, stream, groups, axes, last_only=last)
        offset = 0
        for group, (place, _) in zip(groups, chunk, strict=True):
            own = after[offset : offset + group.count * group.rows]
            done[place].append(own.unflatten(0, (group.count, group.rows)))
            offset += group.count * group.rows
        if progress is not None:
            progress(offset)
    for place, stack in stacks.items():
        stack.pieces = done[place]


def _chunks(
    stacks: dict[Place, _Stack], rows: int
) -> Iterator[list[tuple[Place, list[Tensor]]]]:
    """Split the stacks, in order of place, into runs of at most `rows` rows (one variant at least)."""
    chunk: list[tuple[Place, list[Tensor]]] = []
    room = rows
    for place in sorted(stacks):
        for piece in stacks[place].pieces:
            left = piece
            while len(left):
                fit = room // left.shape[1] or (0 if chunk else 1)
                if fit:
                    taken, left = left[:fit], left[fit:]
                    room -= taken.shape[0] * taken.shape[1]
                    if chunk and chunk[-1][0] == place:
                        chunk[-1][1].append(taken)
                    else:
                        chunk.append((place, [taken]))
                if len(left):
                    yield chunk
                    chunk, room = [], rows
    if chunk:
        yield chunk


def run_rows(
    model: StreamModel,
    base: HeardRun,
    layer: int,
    stream: Float[Tensor, "1 row d_model"],
    groups: Sequence[Group],
    axes: dict,
    *,
    last_only: bool = False,
) -> Float[Tensor, "row d_model"]:
    """One block on the rows of `groups`."""
    if stream.shape[1] == 1:
        # A sequence of one token is special to many attention implementations; two are not.
        doubled = [Group(one.sequence, one.start, 2, one.length) for one in groups]
        stream = stream.expand(-1, 2, -1)
        return run_rows(model, base, layer, stream, doubled, axes, last_only=last_only)[:1]
    sequences, positions = _row_places(groups, stream.device)
    call = take_rows(base.frame.calls[layer], axes, sequences, positions)
    frame = Frame(stream, (*base.frame.calls[:layer], call))
    with LooseAttention(base.attention[layer], groups, last_only=last_only) as attention:
        output = first_tensor(model.run_block(layer, stream, frame))
    if output is None or output.shape != stream.shape or attention.calls != 1:
        raise NotPackableError(f"block {layer} calls attention {attention.calls} times, not once")
    return output[0]


def _row_places(groups: Sequence[Group], device: torch.device) -> tuple[Tensor, Tensor]:
    sequences = [torch.full((one.count * one.rows,), one.sequence) for one in groups]
    positions = [torch.arange(one.start, one.length).repeat(one.count) for one in groups]
    return torch.cat(sequences).to(device), torch.cat(positions).to(device)
