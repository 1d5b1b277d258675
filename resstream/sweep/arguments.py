"""Which axes of a block's arguments are positions and sequences, and how rows of them are taken.

A block is called with more than the stream: rotary angles, masks, position ids.  To run it on
chosen rows of a stream those have to be cut to the same rows.  Which axis counts positions is seen,
not guessed: the model is asked for the calls of inputs of two lengths and of two batch sizes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from resstream.stream.calling import vocabulary_size
from resstream.stream.calls import BlockCall
from resstream.stream.model import StreamModel

Path = tuple[int | str, ...]
_PROBE_LENGTH = 11


class NotPackableError(Exception):
    """A block can't be run on loose rows; the slower path is taken then."""


@dataclass(frozen=True, slots=True)
class Axes:
    """What the axes of one argument count."""

    positions: tuple[int, ...]
    batch: int | None


Arguments = tuple[dict[Path, Axes], ...]
"""For each layer, the axes of every tensor that its block is called with."""


def probe_tokens(model: StreamModel, batch: int, pos: int, *, seed: int = 0) -> Tensor:
    """Token ids ``[batch, pos]``, drawn with a fixed seed."""
    size = vocabulary_size(model.module) or 2
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(min(3, size - 1), size, (batch, pos), generator=generator)
    return ids.to(model.device)


def find_axes(model: StreamModel) -> Arguments:
    """Compare the calls for inputs of other lengths and batch sizes."""
    tokens = probe_tokens(model, 2, _PROBE_LENGTH + 1)
    one, longer, two = (
        model.begin(chosen).calls for chosen in (tokens[:1, :-1], tokens[:1], tokens[:, :-1])
    )
    return tuple(
        _call_axes(*(_tensors(call) for call in calls))
        for calls in zip(one, longer, two, strict=True)
    )


def _call_axes(
    one: dict[Path, Tensor], longer: dict[Path, Tensor], two: dict[Path, Tensor]
) -> dict[Path, Axes]:
    found: dict[Path, Axes] = {}
    for path, value in one.items():
        if path not in longer or path not in two:
            continue
        batch = _changed(value, two[path])
        found[path] = Axes(_changed(value, longer[path]), batch[0] if batch else None)
    return found


def _changed(one: Tensor, other: Tensor) -> tuple[int, ...]:
    pairs = zip(one.shape, other.shape, strict=True)
    return tuple(axis for axis, (size, changed) in enumerate(pairs) if size != changed)


def _tensors(call: BlockCall) -> dict[Path, Tensor]:
    found: dict[Path, Tensor] = {}

    def keep(path: Path, value: Tensor) -> Tensor:
        found[path] = value
        return value

    _map_arguments(call, keep)
    return found


def _map_arguments(call: BlockCall, change: Callable[[Path, Tensor], Tensor]) -> BlockCall:
    """The same call with every tensor but the stream changed."""

    def walk(path: Path, value: Any) -> Any:
        if isinstance(value, Tensor):
            return change(path, value)
        if hasattr(value, "get_seq_length"):
            return None  # a cache that the model fills although it was told not to
        if type(value) in (tuple, list):
            return type(value)(walk((*path, index), item) for index, item in enumerate(value))
        if type(value) is dict:
            return {key: walk((*path, key), item) for key, item in value.items()}
        return value

    args = tuple(
        value if index == call.key else walk((index,), value)
        for index, value in enumerate(call.args)
    )
    kwargs = {
        name: value if name == call.key else walk((name,), value)
        for name, value in call.kwargs.items()
    }
    return BlockCall(args, kwargs, call.key)


def take_rows(
    call: BlockCall, axes: dict[Path, Axes], sequences: Tensor, positions: Tensor
) -> BlockCall:
    """The call of a block for loose rows: row ``i`` is ``positions[i]`` of ``sequences[i]``.

    What counts positions twice is a mask and stays as it is: the attention over loose rows takes
    its mask from the base run.

    Raises:
        NotPackableError: It is not known what an argument's axes count.
    """
    length = call.stream.shape[1]
    done: dict[int, Tensor] = {}

    def rows(path: Path, value: Tensor) -> Tensor:
        if id(value) not in done:
            known = axes.get(path) or _axes_by_size(path, value, length)
            done[id(value)] = _rows(path, value, known, sequences, positions)
        return done[id(value)]

    return _map_arguments(call, rows)


def _axes_by_size(path: Path, value: Tensor, length: int) -> Axes:
    """For arguments that the probe's short inputs did not have, such as the mask of a window."""
    axes = tuple(axis for axis, size in enumerate(value.shape) if size == length)
    if len(axes) == 1:
        raise NotPackableError(f"argument {path} appears only in longer inputs")
    return Axes(axes, None)


def _rows(path: Path, value: Tensor, axes: Axes, sequences: Tensor, positions: Tensor) -> Tensor:
    batch = axes.batch if axes.batch is not None and value.shape[axes.batch] > 1 else None
    if len(axes.positions) != 1:
        if batch is not None and not axes.positions:
            raise NotPackableError(f"argument {path} belongs to sequences, not to positions")
        return value
    (axis,) = axes.positions
    if batch is None:
        return value.index_select(axis, positions)
    front = value.movedim((batch, axis), (0, 1))[sequences, positions]
    return front.unsqueeze(0).movedim((0, 1), (batch, axis))
