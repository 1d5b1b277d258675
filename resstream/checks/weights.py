"""What do the weights alone say?  One reading a tensor, held against its peers in other layers.

A tensor is read once, and only these numbers are kept, so that a checkpoint of any size can be read
part by part.
"""

import hashlib
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from resstream.checks.readings import robust_score
from resstream.stream.model import StreamModel
from resstream.stream.spec import BlockSpec
from resstream.stream.tensor_files import TensorFile

_REACH = 3
_POWER_STEPS = 24
_SPECTRUM_SIDE = 1024
"""Rows and columns of the part whose largest singular value is taken."""
_ROWS_FOR_LEVELS = 8
_NUMBERED = re.compile(r"^(.*?)\.(\d+)\.(.+)$")
_WORDS = {
    "attn": ("attn", "attention", "q_proj", "k_proj", "v_proj", "o_proj"),
    "mlp": ("mlp", "ffn", "feed_forward", "fc1", "fc2", "expert", "ff."),
    "mixer": ("mixer", "ssm"),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MatrixReading:
    """The numbers of one tensor of weights."""

    name: str
    layer: int | None
    """Block it belongs to; None outside of blocks."""
    role: str
    """Its name inside the block: tensors of one role in different layers are peers."""
    write: str | None
    shape: tuple[int, ...]
    n_bad: int
    """Values that are NaN or infinite."""
    norm: float
    """Frobenius norm."""
    peak: float
    """Largest magnitude."""
    peak_at: tuple[int, ...]
    runner_up: float
    """Second largest magnitude."""
    edge_ratio: float
    r"""Largest singular value over :math:`\sigma (\sqrt m + \sqrt n)`, the edge of a random matrix
    of the same standard deviation; near 1 for noise, above it for what was trained."""
    stable_rank: float
    r""":math:`|W|_F^2 / |W|_2^2`; 1 for a matrix of rank one."""
    distinct: int
    """Different values in a row (median of some rows)."""
    digest: str
    """SHA-256 of the values, first 16 hex digits."""
    row_norms: Float[np.ndarray, " row"]
    column_norms: Float[np.ndarray, " column"]

    @property
    def is_matrix(self) -> bool:
        """True for two dimensions: gains and biases have one."""
        return len(self.shape) == 2

    @property
    def is_zero(self) -> bool:
        """True if every value is zero."""
        return self.peak == 0.0 and self.n_bad == 0


class TensorReader:
    """Takes in one tensor, some rows at a time, and keeps only its numbers.

    Args:
        shape: Of the whole tensor.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape
        self._digest = hashlib.sha256()
        self._n_bad = 0
        self._squares = 0.0
        self._peaks: list[tuple[float, int]] = []
        self._passed = 0
        self._row_norms: list[np.ndarray] = []
        self._column_squares = np.zeros(shape[1] if len(shape) == 2 else 0)
        self._edge, self._rank = math.nan, math.nan
        self._distinct = 1

    def take(self, part: Tensor) -> None:
        """Take in the next rows."""
        own = part.detach()
        flat = own.contiguous().cpu().reshape(-1)
        if not flat.numel():
            return
        self._digest.update(flat.view(torch.uint8).numpy().data)
        wide = own if own.dtype == torch.float64 else own.float()
        n_bad = int(wide.numel() - wide.isfinite().sum())
        if n_bad:
            self._n_bad += n_bad
            wide = torch.nan_to_num(wide, nan=0.0, posinf=0.0, neginf=0.0)
        self._take_peaks(wide.reshape(-1))
        if wide.ndim == 2:
            self._take_matrix(wide)
        else:
            self._squares += float(torch.linalg.vector_norm(wide.reshape(-1)).double()) ** 2
        self._passed += wide.numel()

    def _take_peaks(self, flat: Tensor) -> None:
        values, at = flat.abs().topk(min(2, flat.numel()))
        fresh = [(float(v), self._passed + int(i)) for v, i in zip(values, at, strict=True)]
        self._peaks = sorted([*self._peaks, *fresh], key=lambda item: -item[0])[:2]

    def _take_matrix(self, wide: Float[Tensor, "row column"]) -> None:
        if not self._passed:
            self._edge, self._rank = _spectrum(wide)
            self._distinct = _distinct(wide)
        rows = torch.linalg.vector_norm(wide, dim=1).double()
        self._row_norms.append(rows.cpu().numpy())
        columns = torch.linalg.vector_norm(wide, dim=0).double()
        self._column_squares += columns.square().cpu().numpy()
        self._squares += float(rows.square().sum())

    def reading(
        self, name: str, *, layer: int | None, role: str, write: str | None
    ) -> MatrixReading:
        """What was read, under its name."""
        peak, at = self._peaks[0] if self._peaks else (0.0, 0)
        place = np.unravel_index(at, self._shape) if self._passed and self._shape else (0,)
        return MatrixReading(
            name=name,
            layer=layer,
            role=role,
            write=write,
            shape=self._shape,
            n_bad=self._n_bad,
            norm=math.sqrt(self._squares),
            peak=peak,
            peak_at=tuple(int(i) for i in place),
            runner_up=self._peaks[-1][0] if self._peaks else 0.0,
            edge_ratio=self._edge,
            stable_rank=self._rank,
            distinct=self._distinct,
            digest=self._digest.hexdigest()[:16],
            row_norms=np.concatenate(self._row_norms) if self._row_norms else np.zeros(0),
            column_norms=np.sqrt(self._column_squares),
        )


def _spectrum(matrix: Float[Tensor, "row column"]) -> tuple[float, float]:
    """Largest singular value over the random edge, and stable rank; by power iteration."""
    part = matrix[:_SPECTRUM_SIDE, :_SPECTRUM_SIDE]
    norm = torch.linalg.matrix_norm(part)
    if not norm > 0:
        return math.nan, 0.0
    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(part.shape[1], generator=generator).to(part)
    part = part / norm  # so that neither large nor small values leave the range
    for _ in range(_POWER_STEPS):
        vector = part.T @ (part @ vector)
        vector = vector / torch.linalg.vector_norm(vector).clamp_min(1e-30)
    top = float(torch.linalg.vector_norm(part @ vector))
    rows, columns = part.shape
    spread = 1 / math.sqrt(rows * columns)  # of a matrix whose Frobenius norm is one
    edge = spread * (math.sqrt(rows) + math.sqrt(columns))
    return top / edge, 1 / max(top, 1e-30) ** 2


def _distinct(matrix: Float[Tensor, "row column"]) -> int:
    """Median count of different values in a row."""
    step = max(1, matrix.shape[0] // _ROWS_FOR_LEVELS)
    return int(np.median([len(row.unique()) for row in matrix[::step][:_ROWS_FOR_LEVELS]]))


class WeightTable:
    """Readings of all tensors of a model, and who is whose peer.

    Args:
        readings: One for each tensor.
    """

    def __init__(self, readings: Iterable[MatrixReading]) -> None:
        self.readings = tuple(readings)
        self._by_name = {reading.name: reading for reading in self.readings}

    def __getitem__(self, name: str) -> MatrixReading:
        return self._by_name[name]

    def find(self, name: str | None) -> MatrixReading | None:
        """The reading of that name, if there is one."""
        return self._by_name.get(name) if name is not None else None

    @cached_property
    def in_blocks(self) -> tuple[MatrixReading, ...]:
        """Those that belong to a block."""
        return tuple(reading for reading in self.readings if reading.layer is not None)

    def peers(self, own: MatrixReading, *, reach: int | None = None) -> list[MatrixReading]:
        """The same place in other layers, at most `reach` away if that leaves two at least."""
        all_peers = [
            other
            for other in self.in_blocks
            if other.role == own.role and other.layer != own.layer and other.shape == own.shape
        ]
        if reach is None or own.layer is None:
            return all_peers
        near = [p for p in all_peers if abs((p.layer or 0) - own.layer) <= reach]
        return near if len(near) >= 2 else all_peers

    def score(self, own: MatrixReading, feature: str, *, floor: float) -> tuple[float, float]:
        """Median of log(feature) among the near peers as a plain number, and own robust z-score."""
        near = [getattr(peer, feature) for peer in self.peers(own, reach=_REACH)]
        with np.errstate(divide="ignore", invalid="ignore"):
            value, others = np.log(getattr(own, feature)), np.log(np.array(near, dtype=float))
        centre, z = robust_score(float(value), others, floor)
        return float(np.exp(centre)), z

    def layer_of(self, layer: int) -> list[MatrixReading]:
        """All tensors of one block."""
        return [reading for reading in self.in_blocks if reading.layer == layer]


def read_model_weights(model: StreamModel) -> WeightTable:
    """Read the parameters of a model in memory."""
    return WeightTable(_of_model(model))


def read_files(files: Iterable[TensorFile]) -> WeightTable:
    """Read the tensors of files, one part of one tensor at a time."""
    readings: list[MatrixReading] = []
    for file in files:
        for tensor, parts in file.read():
            reader = TensorReader(tensor.shape)
            for part in parts:
                reader.take(part)
            layer, role = place_of(tensor.name)
            write = word_of(role) if layer is not None else None
            readings.append(reader.reading(tensor.name, layer=layer, role=role, write=write))
    return WeightTable(readings)


def _of_model(model: StreamModel) -> Iterator[MatrixReading]:
    blocks = {f"{block.module}.": block for block in model.spec.blocks}
    for name, value in model.module.named_parameters():
        if not value.is_floating_point():
            continue
        reader = TensorReader(tuple(value.shape))
        reader.take(value)
        prefix = next((start for start in blocks if name.startswith(start)), None)
        if prefix is None:
            yield reader.reading(name, layer=None, role=name, write=None)
            continue
        role = name.removeprefix(prefix)
        write = _write_of(name, blocks[prefix]) or word_of(role)
        yield reader.reading(name, layer=blocks[prefix].layer, role=role, write=write)


def _write_of(name: str, block: BlockSpec) -> str | None:
    """The write whose module, norm or output matrix holds the parameter."""
    for write in block.writes:
        places = (f"{write.module}.", f"{write.reader}.", f"{write.branch}.")
        if name.startswith(places) or name == write.output_matrix:
            return write.name
    return None


def place_of(name: str) -> tuple[int | None, str]:
    """Layer and role of a tensor by its name in a file: the first number in it is the layer."""
    found = _NUMBERED.match(name)
    return (int(found[2]), found[3]) if found else (None, name)


def word_of(role: str) -> str | None:
    """Which write a tensor belongs to, by the words in its name; None if that can't be told."""
    for write, words in _WORDS.items():
        if any(word in role for word in words):
            return write
    return None
