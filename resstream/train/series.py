"""How does the series of all steps lie on disk: whole after a crash, and no burden to memory?

A directory holds ``layout.json`` (what was measured) and ``steps.f32`` (one row of float32 a step).
A run that is resumed cuts off what lies behind the checkpoint and goes on.
"""

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from jaxtyping import Float

from resstream.errors import OutputError, ResultError
from resstream.stream.files import write_file
from resstream.stream.result import from_plain, to_plain

SCHEMA = "resstream.monitor_series/1"

_LAYOUT, _STEPS = "layout.json", "steps.f32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What each step of a series holds, in the order of its row.

    A row is: step, loss, learning rate, first bad place (-1: none), gradient norm of each block and
    of all other parameters, three metrics of each write, the scales, norm at each point.
    """

    model: str
    layers: tuple[int, ...]
    """Of each write."""
    names: tuple[str, ...]
    """``attn``, ``mlp`` and the like, of each write."""
    sites: tuple[str, ...]
    stream_sites: tuple[str, ...]
    scale_layers: tuple[int, ...]
    """Of each scale, where branches are scaled."""
    scale_names: tuple[str, ...]
    n_blocks: int
    places: tuple[str, ...]
    """Where a value that is not finite may be found, in the order of execution."""

    @property
    def sections(self) -> dict[str, tuple[int, ...]]:
        """Name of each part of a row, and its shape."""
        n_writes = len(self.sites)
        return {
            "step": (),
            "loss": (),
            "learning_rate": (),
            "bad": (),
            "gradients": (self.n_blocks + 1,),
            "writes": (3, n_writes),
            "scale": (len(self.scale_names),),
            "stream_norm": (len(self.stream_sites),),
        }

    @property
    def width(self) -> int:
        """Numbers in a row."""
        return sum(int(np.prod(shape)) for shape in self.sections.values())

    def row(self, **parts: object) -> Float[np.ndarray, " column"]:
        """One row of its parts."""
        flat = [
            np.broadcast_to(np.asarray(parts[name], dtype=np.float32), shape).ravel()
            for name, shape in self.sections.items()
        ]
        return np.concatenate(flat)

    def split(self, rows: Float[np.ndarray, "step column"]) -> dict[str, np.ndarray]:
        """The parts of many rows, each with the steps first."""
        found: dict[str, np.ndarray] = {}
        start = 0
        for name, shape in self.sections.items():
            end = start + int(np.prod(shape))
            found[name] = rows[:, start:end].reshape(len(rows), *shape)
            start = end
        return found


class SeriesWriter:
    """Appends one row a step.

    Args:
        directory: Where the series lies.
        layout: What a row holds.
        done: Steps that are done already; what lies behind them in an older series is cut off.

    Raises:
        OutputError: The directory can't be written.
        ResultError: An older series to go on with holds something else.
    """

    def __init__(self, directory: Path, layout: Layout, *, done: int) -> None:
        self._row_bytes = 4 * layout.width
        path = directory / _STEPS
        try:
            directory.mkdir(parents=True, exist_ok=True)
            kept = _rows_to_keep(directory, layout, done) if done else 0
            with write_file(directory / _LAYOUT) as part:
                plain = {"schema": SCHEMA, **to_plain(layout)}
                part.write_text(json.dumps(plain, indent=1), encoding="utf-8")
            self._file: BinaryIO = path.open("r+b" if path.exists() else "w+b")
            self._file.truncate(kept * self._row_bytes)
            self._file.seek(0, os.SEEK_END)
        except OSError as err:
            raise OutputError(f"cannot write {path}: {err.strerror or err}") from err

    def append(self, row: Float[np.ndarray, " column"]) -> None:
        """Add the row of one step."""
        self._file.write(row.astype("<f4").tobytes())

    def flush(self) -> None:
        """Bring all rows to disk, as a checkpoint that counts on them does."""
        self._file.flush()

    def close(self) -> None:
        """Bring all rows to disk and let the file go."""
        self._file.close()


def _rows_to_keep(directory: Path, layout: Layout, done: int) -> int:
    """Rows of an older series up to step `done`; 0 if there is none."""
    if not (directory / _LAYOUT).exists():
        return 0
    old, rows = open_series(directory)
    if dataclasses.replace(old, model=layout.model) != layout:
        raise ResultError(
            f"{directory} holds the series of another model ({old.model}, {old.n_blocks} blocks); "
            "choose another directory"
        )
    return int(np.searchsorted(rows[:, 0], done, side="right"))


def open_series(directory: str | Path) -> tuple[Layout, Float[np.ndarray, "step column"]]:
    """Layout and rows of a series, the rows left on disk until they are read.

    Raises:
        ResultError: There is no series, or it is damaged.
    """
    place = Path(directory)
    try:
        plain = json.loads((place / _LAYOUT).read_text("utf-8"))
        if plain.pop("schema", None) != SCHEMA:
            raise ValueError(f"schema must be {SCHEMA!r}")
        layout = from_plain(Layout, plain)
        size = (place / _STEPS).stat().st_size // (4 * layout.width)
        if not size:
            return layout, np.zeros((0, layout.width), dtype=np.float32)
        rows = np.memmap(place / _STEPS, dtype="<f4", mode="r", shape=(size, layout.width))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as err:
        raise ResultError(f"no series of a monitor in {place}: {err}") from err
    return layout, rows
