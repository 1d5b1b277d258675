"""What is a residual write?  The definition, in plain torch, that every implementation must meet.

    write = gain * (layer_scale * branch)                computed in float32
    z     = skip_scale * stream + write                  computed in float32
    new   = round(z) to the stream's dtype               the value that is stored
    xhat  = new / sqrt(mean(new^2) + eps)                norm "rms"
    xhat  = (new - mean(new)) / sqrt(var(new) + eps)     norm "layer"
    normed = round(xhat * (weight + weight_offset) + bias) to out_dtype

Norm and statistics read the *stored* stream, as Llama and vLLM do, so that a backward pass that
saved `new` sees what the forward pass saw.  ``cast="hf"`` rounds xhat to `out_dtype` before the
weight (Llama), ``cast="end"`` rounds once (Gemma, flash-attention).  Rounding is to nearest even;
gradients pass through it unchanged.  If stream or branch is float64, so is all arithmetic.

The form is the cheap one: reductions that torch does without temporaries, and NumPy's argmax,
which on a CPU is several times faster than ``abs().max()``.
"""

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

Norm = Literal["rms", "layer"]
Cast = Literal["end", "hf"]

STATISTICS = (
    "write_norm",
    "stream_norm",
    "new_norm",
    "stream_dot_write",
    "max_abs",
    "max_channel",
    "n_nonfinite",
    "branch_norm",
)
"""Last axis of the statistics.  Norms are Euclidean, of float32 sums of squares: a norm that is
infinite where `n_nonfinite` is 0 means that a square overflowed.  `max_abs` (infinite if any
channel is not finite), `max_channel` (the first such channel) and `n_nonfinite` speak of the new
stream."""

_BLOCK_ELEMENTS = 2**17
"""Elements of the stream that are worked on at a time on a CPU: 512 KiB of float32."""


@dataclass(frozen=True, kw_only=True)
class WriteOperands:
    """The tensors of one residual write."""

    stream: Float[Tensor, "*batch d_model"]
    """The stream before the write."""
    branch: Float[Tensor, "*batch d_model"]
    """Raw output of the sublayer."""
    weight: Tensor | None = None
    """Weight of the norm that reads the new stream; ``[d_model]``, or anything that broadcasts."""
    bias: Tensor | None = None
    """Bias of that norm."""
    layer_scale: Tensor | None = None
    """LayerScale's gamma; ``[d_model]``, or anything that broadcasts."""
    gain: float | Tensor = 1.0
    """Factor on the branch: a number, a one-element tensor, or a tensor that broadcasts."""
    skip_scale: float | Tensor = 1.0
    """Factor on the stream, of the same kinds."""


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """What is computed beside the new stream."""

    norm: Norm | None
    """Norm of the next reader; None: no `normed`."""
    out_dtype: torch.dtype
    """Dtype of `normed`."""
    eps: float = 1e-6
    """Added to the mean square (or variance)."""
    weight_offset: float = 0.0
    """Added to the weight: 1 for Gemma's zero-centred weights."""
    cast: Cast = "end"
    """Where xhat is rounded."""
    stats: bool = False
    """Whether the statistics are wanted."""


class ResidualWrite(NamedTuple):
    """What one residual write leaves behind."""

    stream: Float[Tensor, "*batch d_model"]
    """The new stream, in the old one's dtype."""
    normed: Float[Tensor, "*batch d_model"] | None
    """The new stream as its next reader sees it."""
    stats: Float[Tensor, "*batch 8"] | None
    """See `STATISTICS`; not differentiable."""


def reference_write(operands: WriteOperands, options: WriteOptions) -> ResidualWrite:
    """The residual write as defined at the top of this module.

    Args:
        operands: Tensors; every one may broadcast against the stream except the branch.
        options: What to compute.

    Returns:
        The new stream, its normed form and the statistics, as far as asked for.
    """
    n_rows = max(1, _BLOCK_ELEMENTS // operands.stream.shape[-1])
    if operands.stream.numel() <= n_rows * operands.stream.shape[-1] or not _can_be_cut(operands):
        return _write(operands, options)
    return _write_by_blocks(operands, options, n_rows)


def _can_be_cut(operands: WriteOperands) -> bool:
    """Whether rows may be taken by themselves: on a CPU, unrecorded, all with one scale."""
    tensors = [value for value in vars(operands).values() if isinstance(value, Tensor)]
    on_host = operands.stream.device.type == "cpu"
    one_scale = all(tensor.ndim <= 1 or tensor.numel() == 1 for tensor in tensors[2:])
    return on_host and one_scale and not _is_recorded(*tensors)


def _write_by_blocks(operands: WriteOperands, options: WriteOptions, n_rows: int) -> ResidualWrite:
    """A block of rows at a time, so that what lies between the steps stays in the cache."""
    width = operands.stream.shape[-1]
    stream, branch = operands.stream.reshape(-1, width), operands.branch.reshape(-1, width)
    whole: tuple[Tensor, ...] = ()
    for start in range(0, len(stream), n_rows):
        rows = slice(start, start + n_rows)
        part = _write(replace(operands, stream=stream[rows], branch=branch[rows]), options)
        found = [value for value in part if value is not None]
        whole = whole or tuple(v.new_empty(len(stream), v.shape[-1]) for v in found)
        for target, value in zip(whole, found, strict=True):
            target[rows] = value
    shape = operands.stream.shape[:-1]
    shaped = iter([values.reshape(*shape, values.shape[-1]) for values in whole])
    return ResidualWrite(
        next(shaped),
        None if options.norm is None else next(shaped),
        next(shaped) if options.stats else None,
    )


def _write(operands: WriteOperands, options: WriteOptions) -> ResidualWrite:
    wide = widen(operands)
    write, exact = combine(wide)
    stored, new = _stored(exact, operands.stream.dtype)
    new_norm = stats = normed = None
    if options.stats or options.norm == "rms":
        new_norm = torch.linalg.vector_norm(new, dim=-1, keepdim=True)
    if options.stats and new_norm is not None:
        stats = measure(wide, write, new, new_norm)
    if options.norm is not None:
        spare = write if write is not wide.branch and not _is_recorded(write, new) else None
        normed = normalize(new, wide, options, new_norm, spare)
    return ResidualWrite(stored, normed, stats)


def widen(operands: WriteOperands) -> WriteOperands:
    """The operands with stream and branch in the dtype of the arithmetic."""
    double = torch.float64 in (operands.stream.dtype, operands.branch.dtype)
    compute = torch.float64 if double else torch.float32
    return replace(operands, stream=operands.stream.to(compute), branch=operands.branch.to(compute))


def combine(
    wide: WriteOperands,
) -> tuple[Float[Tensor, "*batch d_model"], Float[Tensor, "*batch d_model"]]:
    """The write and the new stream before it is rounded; operands as from `widen`."""
    write = wide.branch
    if wide.layer_scale is not None:
        write = wide.layer_scale.to(write.dtype) * write
    write = _times(wide.gain, write)
    return write, _times(wide.skip_scale, wide.stream) + write


def _times(factor: float | Tensor, values: Tensor) -> Tensor:
    if isinstance(factor, Tensor):
        factor = factor.reshape(()) if factor.numel() == 1 else factor
        return factor.to(values.dtype) * values
    return values if _is_one(factor) else factor * values


def _is_one(factor: float | Tensor) -> bool:
    return not isinstance(factor, Tensor) and factor == 1.0


def _stored(exact: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The new stream as stored, and the same values in the dtype of the arithmetic."""
    stored = exact.to(dtype)
    return stored, exact if dtype == exact.dtype else _passing(exact, stored)


def _passing(values: Tensor, rounded: Tensor) -> Tensor:
    """Rounded values in the dtype of `values`, whose gradient passes as if they were not."""
    wide = rounded.detach().to(values.dtype)
    return values + (wide - values.detach()) if values.requires_grad else wide


def _is_recorded(*tensors: Tensor) -> bool:
    """Whether a graph (autograd's or a compiler's) may still need the values of these tensors."""
    if torch.compiler.is_compiling():
        return True
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def normalize(
    new: Float[Tensor, "*batch d_model"],
    operands: WriteOperands,
    options: WriteOptions,
    new_norm: Float[Tensor, "*batch 1"] | None = None,
    spare: Float[Tensor, "*batch d_model"] | None = None,
) -> Float[Tensor, "*batch d_model"]:
    """The stored stream as its next reader sees it.

    Args:
        new: Stored stream, already in the dtype of the arithmetic.
        operands: Give weight and bias.
        options: Give the norm, eps, offset, cast and output dtype.
        new_norm: Norm of each row where it is known; spares one reading.
        spare: A tensor of which nobody needs the values any more; the result may lie in it.  Memory
            that was just used is several times faster than memory that is new.
    """
    width = new.shape[-1]
    if options.norm == "layer":
        xhat = torch.nn.functional.layer_norm(new, (width,), eps=options.eps)
    else:
        known = new_norm is not None
        length = new_norm if known else torch.linalg.vector_norm(new, dim=-1, keepdim=True)
        xhat = torch.mul(new, torch.rsqrt(length.square() / width + options.eps), out=spare)
    if options.cast == "hf" and torch.finfo(options.out_dtype).bits < torch.finfo(new.dtype).bits:
        xhat = _passing(xhat, xhat.to(options.out_dtype))
    if operands.weight is not None:
        weight = operands.weight.to(new.dtype)
        weight = weight + options.weight_offset if options.weight_offset else weight
        xhat = torch.mul(xhat, weight, out=spare)
    if operands.bias is not None:
        xhat = torch.add(xhat, operands.bias.to(new.dtype), out=spare)
    return xhat.to(options.out_dtype)


@torch.no_grad()
def measure(
    wide: WriteOperands,
    write: Float[Tensor, "*batch d_model"],
    new: Float[Tensor, "*batch d_model"],
    new_norm: Float[Tensor, "*batch 1"],
) -> Float[Tensor, "*batch 8"]:
    """The statistics of one write, in the order of `STATISTICS`; operands as from `widen`."""
    stream = wide.stream
    write_norm = torch.linalg.vector_norm(write, dim=-1)
    branch_norm = write_norm
    if write is not wide.branch:
        branch_norm = torch.linalg.vector_norm(wide.branch, dim=-1)
    is_host = new.device.type == "cpu" and not torch.compiler.is_compiling()
    dot = _dot_host(stream, write) if is_host else torch.linalg.vecdot(stream, write)
    extremes = _extremes_host(new, new_norm[..., 0]) if is_host else _extremes(new)
    stream_norm = torch.linalg.vector_norm(stream, dim=-1)
    columns = (write_norm, stream_norm, new_norm[..., 0], dot, *extremes, branch_norm)
    return torch.stack([column.to(write.dtype) for column in columns], dim=-1)


def _extremes(new: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Largest magnitude, its channel and the number of non-finite channels of each row."""
    finite = torch.isfinite(new)
    top, channel = new.abs().masked_fill(~finite, torch.inf).max(dim=-1)
    return top, channel, new.shape[-1] - finite.sum(-1)


def _extremes_host(new: Tensor, new_norm: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As `_extremes`; NumPy's argmax reads a row at memory speed and writes nothing.

    Only rows whose norm is not finite can hold a non-finite value: only they are looked at twice.
    """
    rows = new.detach().reshape(-1, new.shape[-1]).numpy()
    high, low = rows.argmax(-1), rows.argmin(-1)
    each = np.arange(len(rows))
    above, below = rows[each, high], -rows[each, low]
    channel = np.where(above > below, high, np.where(below > above, low, np.minimum(high, low)))
    found = (torch.from_numpy(np.maximum(above, below)), torch.from_numpy(channel))
    top, at = (column.reshape(new_norm.shape) for column in found)
    count = torch.zeros_like(at)
    odd = ~torch.isfinite(new_norm)
    if odd.any():
        top[odd], at[odd], count[odd] = _extremes(new[odd])
    return top, at, count


def _dot_host(stream: Tensor, write: Tensor) -> Tensor:
    """Inner product of each row; NumPy makes no temporary of the product."""
    pair = (stream.detach(), write.detach())
    rows = (values.reshape(-1, values.shape[-1]).numpy() for values in pair)
    return torch.from_numpy(np.vecdot(*rows)).reshape(stream.shape[:-1])
