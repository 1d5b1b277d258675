"""What do the weights alone say?  One reading a tensor, held against its peers in other layers.

A tensor is read once, whole, and only these numbers are kept, so that a checkpoint of any size can
be read block by block.
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
    levels: float
    """Different values in a row (median of some rows), over the length of the row."""
    distinct: int
    """The same as a count."""
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


def read_tensor(
    name: str, value: Tensor, *, layer: int | None, role: str, write: str | None
) -> MatrixReading:
    """Read one tensor; it may be dropped afterwards."""
    wide = value.detach()
    wide = wide if wide.dtype == torch.float64 else wide.float()
    flat = wide.reshape(-1)
    n_bad = int(flat.numel() - flat.isfinite().sum())
    if n_bad:
        wide = torch.nan_to_num(wide, nan=0.0, posinf=0.0, neginf=0.0)
        flat = wide.reshape(-1)
    peaks, at = flat.abs().topk(min(2, flat.numel()))
    matrix = wide if wide.ndim == 2 else wide.reshape(wide.shape[0], -1) if wide.ndim else None
    rows, columns = _norms(wide)
    edge, rank = _spectrum(wide) if wide.ndim == 2 else (math.nan, math.nan)
    distinct, length = _distinct(matrix)
    return MatrixReading(
        name=name,
        layer=layer,
        role=role,
        write=write,
        shape=tuple(value.shape),
        n_bad=n_bad,
        norm=float(torch.linalg.vector_norm(flat)),
        peak=float(peaks[0]),
        peak_at=tuple(int(i) for i in np.unravel_index(int(at[0]), tuple(value.shape) or (1,))),
        runner_up=float(peaks[-1]),
        edge_ratio=edge,
        stable_rank=rank,
        levels=distinct / max(1, length),
        distinct=distinct,
        digest=_digest(value),
        row_norms=rows,
        column_norms=columns,
    )


def _norms(wide: Tensor) -> tuple[np.ndarray, np.ndarray]:
    if wide.ndim != 2:
        return np.zeros(0), np.zeros(0)
    return tuple(torch.linalg.vector_norm(wide, dim=d).double().cpu().numpy() for d in (1, 0))  # type: ignore[return-value]


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


def _distinct(matrix: Tensor | None) -> tuple[int, int]:
    """Median count of different values in a row, and the length of a row."""
    if matrix is None or matrix.shape[1] < 2:
        return 1, 1
    step = max(1, matrix.shape[0] // _ROWS_FOR_LEVELS)
    counts = [len(row.unique()) for row in matrix[::step][:_ROWS_FOR_LEVELS]]
    return int(np.median(counts)), matrix.shape[1]


def _digest(value: Tensor) -> str:
    flat = value.detach().contiguous().cpu().reshape(-1)
    data = flat.view(torch.uint8).numpy() if flat.numel() else b""
    return hashlib.sha256(data).hexdigest()[:16]


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


def _of_model(model: StreamModel) -> Iterator[MatrixReading]:
    blocks = {f"{block.module}.": block for block in model.spec.blocks}
    for name, value in model.module.named_parameters():
        if not value.is_floating_point():
            continue
        prefix = next((start for start in blocks if name.startswith(start)), None)
        if prefix is None:
            yield read_tensor(name, value, layer=None, role=name, write=None)
            continue
        block = blocks[prefix]
        write = next(
            (
                w.name
                for w in block.writes
                if name.startswith((f"{w.module}.", f"{w.reader}.", f"{w.branch}."))
                or name == w.output_matrix
            ),
            None,
        )
        role = name.removeprefix(prefix)
        yield read_tensor(name, value, layer=block.layer, role=role, write=write or word_of(role))


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
