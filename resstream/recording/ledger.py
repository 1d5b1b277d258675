"""What is one write, token by token: how large, which way does it point, how much of it survives?

Sums over channels are taken in float32 (float64 for a float64 model) in the form that is cheap on a
CPU: vector norms, one dot product, one argmax.  A row whose norm is zero, tiny, huge or not finite
is summed again in float64, so that neither overflow nor underflow of a square is taken for a fault.
"""

from dataclasses import dataclass, fields

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from resstream.kernels.reference import STATISTICS

METRICS = (
    "branch_norm",
    "write_norm",
    "relative_norm",
    "cosine",
    "parallel",
    "orthogonal",
    "erase_fraction",
    "channel_share",
    "survival",
    "survival_cosine",
)
"""Names of the metrics of a write, in the order of the first axis of `write_metrics`."""

_SAFE_LOW, _SAFE_HIGH = 1e-15, 1e15
"""Norms between these are summed without overflow or underflow of a square in float32."""


@dataclass(frozen=True, slots=True, eq=False)
class WriteSums:
    """Sums over the channels of each write, from which all of its metrics follow."""

    branch_norm: Float[np.ndarray, "write batch pos"]
    """Norm of the sublayer's raw output."""
    write_norm: Float[np.ndarray, "write batch pos"]
    stream_norm: Float[np.ndarray, "write batch pos"]
    """Norm of the stream that the write is added to."""
    dot: Float[np.ndarray, "write batch pos"]
    """Dot product of write and stream."""
    final_dot: Float[np.ndarray, "write batch pos"]
    """Dot product of write and last stream."""
    channel: Int[np.ndarray, "write batch pos"]
    """Channel in which the write is largest; the first NaN, if there is one."""
    peak: Float[np.ndarray, "write batch pos"]
    """Size of the write in that channel."""

    @classmethod
    def make_room(cls, n_writes: int, batch: int, pos: int) -> "WriteSums":
        """Sums that are still to be filled; all NaN."""
        shape = (n_writes, batch, pos)
        rooms = {item.name: np.full(shape, np.nan) for item in fields(cls)}
        return cls(**(rooms | {"channel": np.zeros(shape, dtype=np.int64)}))

    def fill(
        self,
        index: int,
        write: Float[Tensor, "batch pos d_model"],
        stream: Float[Tensor, "batch pos d_model"],
        stream_norm: Float[np.ndarray, "batch pos"],
    ) -> None:
        """Sum write number `index` into a stream whose norm is known."""
        self.write_norm[index] = row_norms(write)
        self.stream_norm[index] = stream_norm
        self.dot[index] = row_dots(write, stream, self.write_norm[index], stream_norm)
        self._fill_peak(index, write)

    def fill_measured(
        self, index: int, write: Float[Tensor, "batch pos d_model"], statistics: Tensor
    ) -> bool:
        """Take the sums of write `index` from its own `statistics`, where these are beyond doubt.

        Returns:
            False if a square may have gone over or under; nothing was filled then.
        """
        own = dict(zip(STATISTICS, np.moveaxis(_to_host(statistics), -1, 0), strict=True))
        if _doubtful(own["write_norm"]).any() or _doubtful(own["stream_norm"]).any():
            return False
        self.write_norm[index] = own["write_norm"]
        self.stream_norm[index] = own["stream_norm"]
        self.dot[index] = own["stream_dot_write"]
        self._fill_peak(index, write)
        return True

    def _fill_peak(self, index: int, write: Float[Tensor, "batch pos d_model"]) -> None:
        self.channel[index] = _largest_channel(write)
        at = torch.from_numpy(self.channel[index]).to(write.device).unsqueeze(-1)
        self.peak[index] = _to_host(write.gather(-1, at).squeeze(-1).abs())


def widen(values: Tensor) -> Tensor:
    """The same values in float32, or as they are in float64."""
    return values if values.dtype == torch.float64 else values.float()


def row_norms(values: Float[Tensor, "batch pos d_model"]) -> Float[np.ndarray, "batch pos"]:
    """Euclidean norm of each token's vector; not finite only where a channel is not finite."""
    norms = _to_host(torch.linalg.vector_norm(values, dim=-1))
    doubtful = _doubtful(norms)
    if doubtful.any():
        norms[doubtful] = torch.linalg.vector_norm(_rows(values, doubtful), dim=-1).numpy()
    return norms


def row_dots(
    left: Float[Tensor, "batch pos d_model"],
    right: Float[Tensor, "batch pos d_model"],
    left_norm: Float[np.ndarray, "batch pos"],
    right_norm: Float[np.ndarray, "batch pos"],
) -> Float[np.ndarray, "batch pos"]:
    """Dot product of each token's two vectors, whose norms are known."""
    dots = _to_host(torch.linalg.vecdot(left, right))
    doubtful = _doubtful(left_norm) | _doubtful(right_norm)
    if doubtful.any():
        dots[doubtful] = torch.linalg.vecdot(_rows(left, doubtful), _rows(right, doubtful)).numpy()
    return dots


def count_non_finite(
    values: Float[Tensor, "batch pos d_model"], norms: Float[np.ndarray, "batch pos"]
) -> Int[np.ndarray, "batch pos"]:
    """How many channels of each token are not finite; looks only at rows whose norm is not."""
    counts = np.zeros(norms.shape, dtype=np.int64)
    suspicious = ~np.isfinite(norms)
    if suspicious.any():
        counts[suspicious] = (~_rows(values, suspicious).isfinite()).sum(-1).numpy()
    return counts


def write_metrics(
    sums: WriteSums, final_norm: Float[np.ndarray, "batch pos"]
) -> Float[np.ndarray, "metric write batch pos"]:
    r"""All metrics of writes ``w`` into a stream ``x`` whose last value is ``z``.

    ===================  ==================================================================
    branch_norm          norm of the sublayer's raw output, before norm, gate and scale
    write_norm           :math:`|w|`
    relative_norm        :math:`|w| / |x|`
    cosine               :math:`\langle w, x \rangle / (|w| |x|)`
    parallel             :math:`\langle w, x \rangle / |x|`, signed length along the stream
    orthogonal           :math:`\sqrt{|w|^2 - \text{parallel}^2}`
    erase_fraction       :math:`\max(0, -\langle w, x \rangle) / |x|^2`; above 1 it overshoots
    channel_share        :math:`\max_c w_c^2 / |w|^2`, the part of the largest channel
    survival             :math:`\langle w, z \rangle / |w|^2`; 1 if nothing touches the write
    survival_cosine      :math:`\langle w, z \rangle / (|w| |z|)`
    ===================  ==================================================================

    What a zero vector leaves undefined is NaN (infinite for the relative norm of a write into a
    zero stream), and so is everything about a vector with a channel that is not finite.  The
    orthogonal part of a write that is all but parallel is known to about 3e-4 of the write's norm.
    """
    write, stream = _finite(sums.write_norm), _finite(sums.stream_norm)
    with np.errstate(divide="ignore", invalid="ignore"):
        parallel = _finite(sums.dot) / stream
        return np.stack(
            [
                sums.branch_norm,
                write,
                write / stream,
                parallel / write,
                parallel,
                np.sqrt(np.maximum(write**2 - parallel**2, 0.0)),
                np.maximum(0.0, -parallel / stream),
                (sums.peak / write) ** 2,
                sums.final_dot / write / write,
                sums.final_dot / write / _finite(final_norm),
            ]
        )


def _finite(values: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    return np.where(np.isfinite(values), values, np.nan)


def _doubtful(norms: Float[np.ndarray, "batch pos"]) -> Bool[np.ndarray, "batch pos"]:
    return ~((norms > _SAFE_LOW) & (norms < _SAFE_HIGH))


def _rows(values: Tensor, chosen: Bool[np.ndarray, "batch pos"]) -> Float[Tensor, "row d_model"]:
    return values[torch.from_numpy(chosen).to(values.device)].cpu().double()


def _to_host(values: Float[Tensor, "batch pos *sums"]) -> Float[np.ndarray, "batch pos *sums"]:
    return values.cpu().double().numpy(force=True)  # in this order: not every device has float64


def _largest_channel(values: Float[Tensor, "batch pos d_model"]) -> Int[np.ndarray, "batch pos"]:
    if values.device.type == "cpu":
        return np.abs(values.numpy(force=True)).argmax(-1)  # 3 to 5 times faster than torch's
    return values.abs().argmax(-1).cpu().numpy()
