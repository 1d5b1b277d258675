"""What tensors does a checkpoint hold?  Safetensors files, read in order and each byte once.

The safetensors library maps whole files into memory, where every page that was touched counts as
resident; here a file is read like a stream, a part of a tensor at a time.

Reference: https://github.com/huggingface/safetensors, "Format".
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from resstream.errors import CheckpointError

PART_BYTES = 64 << 20
"""Largest part of a tensor that is in memory at a time."""
_MOST_HEADER = 100 << 20
_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """One tensor of a file."""

    name: str
    dtype: torch.dtype | None
    """None for whole numbers and booleans, whose bytes are passed over."""
    shape: tuple[int, ...]
    start: int
    """First byte in the data part of its file."""
    end: int


@dataclass
class TensorFile:
    """One safetensors file, to be read once from the beginning to the end.

    Raises:
        CheckpointError: The file is missing, damaged, or no safetensors file.
    """

    path: Path
    bytes_read: int = 0
    tensors: tuple[StoredTensor, ...] = field(init=False)
    """In the order in which they stand in the file."""

    def __post_init__(self) -> None:
        try:
            with self.path.open("rb") as file:
                size = int.from_bytes(self._take(file, 8), "little")
                if not 2 <= size <= min(_MOST_HEADER, self.path.stat().st_size):
                    raise ValueError(f"a header of {size} bytes")
                header = json.loads(self._take(file, size))
            self._begin = 8 + size
            self.tensors = tuple(
                sorted(
                    (_stored(n, e) for n, e in header.items() if n != "__metadata__"),
                    key=lambda tensor: tensor.start,
                )
            )
            self._require_whole()
        except OSError as err:
            raise CheckpointError(f"cannot read {self.path}: {err.strerror or err}") from err
        except (ValueError, KeyError, TypeError, AttributeError) as err:
            raise CheckpointError(f"{self.path} is no whole safetensors file: {err}") from err

    def _require_whole(self) -> None:
        end = max((tensor.end for tensor in self.tensors), default=0)
        have = self.path.stat().st_size - self._begin
        if have != end:
            raise ValueError(f"it should hold {end} bytes of values and holds {have}")

    def _take(self, file: BinaryIO, count: int) -> bytearray:
        buffer = bytearray(count)
        got = file.readinto(buffer)  # type: ignore[attr-defined]
        if got != count:
            raise ValueError("it ends too early")
        self.bytes_read += count
        return buffer

    def read(self) -> Iterator[tuple[StoredTensor, Iterator[Tensor]]]:
        """Each tensor of floating numbers with its parts: some rows at a time, in order.

        All parts of a tensor have to be taken before the next tensor.
        """
        with self.path.open("rb", buffering=0) as file:
            file.seek(self._begin)
            for tensor in self.tensors:
                if tensor.dtype is None:
                    file.seek(tensor.end - tensor.start, 1)
                    continue
                yield tensor, self._parts(file, tensor)

    def _parts(self, file: Any, tensor: StoredTensor) -> Iterator[Tensor]:
        assert tensor.dtype is not None, "whole numbers are passed over"
        rows = tensor.shape[0] if tensor.shape else 1
        row_bytes = (tensor.end - tensor.start) // max(1, rows)
        step = max(1, PART_BYTES // max(1, row_bytes))
        for first in range(0, rows, step):
            count = min(step, rows - first)
            if not row_bytes:
                continue
            part = torch.frombuffer(self._take(file, count * row_bytes), dtype=tensor.dtype)
            yield part.view(count, *tensor.shape[1:]) if tensor.shape else part


def checkpoint_files(place: str | Path) -> list[TensorFile]:
    """The safetensors files of a checkpoint: a file, or all of a directory.

    Raises:
        CheckpointError: There are none.
    """
    path = Path(place).expanduser()
    if path.is_file() and path.suffix == ".safetensors":
        return [TensorFile(path)]
    if not path.is_dir():
        what = f"{place} is no checkpoint" if path.exists() else f"no such checkpoint: {place}"
        raise CheckpointError(f"{what} (a directory, or a .safetensors file)")
    found = sorted(path.glob("*.safetensors"))
    if not found:
        raise CheckpointError(
            f"{place} has no .safetensors file; weights in other formats can't be read block by "
            "block, convert them"
        )
    return [TensorFile(each) for each in found]


def _stored(name: str, entry: dict[str, Any]) -> StoredTensor:
    start, end = entry["data_offsets"]
    shape = tuple(int(side) for side in entry["shape"])
    dtype = _TYPES.get(entry["dtype"])
    if dtype is not None and math.prod(shape) * dtype.itemsize != end - start:
        raise ValueError(f"{name} has {end - start} bytes for shape {shape}")
    return StoredTensor(name=name, dtype=dtype, shape=shape, start=start, end=end)
