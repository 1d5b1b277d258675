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

import math
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

_BLOCK_ELEMENTS = 2**19
"""Elements of the stream that are worked on at a time on a CPU: 2 MiB of float32."""


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
    n_blocks = math.ceil(operands.stream.numel() / _BLOCK_ELEMENTS)
    if n_blocks > 1 and _can_be_cut(operands):
        return _write_by_blocks(operands, options, n_blocks)
    return _write(operands, options)


def _can_be_cut(operands: WriteOperands) -> bool:
    """Whether rows may be taken by themselves: on a CPU, unrecorded, all with one scale."""
    tensors = [value for value in vars(operands).values() if isinstance(value, Tensor)]
    on_host = operands.stream.device.type == "cpu"
    one_scale = all(tensor.ndim <= 1 or tensor.numel() == 1 for tensor in tensors[2:])
    return on_host and one_scale and not _is_recorded(operands)


def _write_by_blocks(
    operands: WriteOperands, options: WriteOptions, n_blocks: int
) -> ResidualWrite:
    """A block of rows at a time, so that what lies between the steps stays in the cache."""
    shape, dtype = operands.stream.shape, operands.stream.dtype
    flat = {name: getattr(operands, name).reshape(-1, shape[-1]) for name in ("stream", "branch")}
    total = len(flat["stream"])
    n_rows = math.ceil(total / n_blocks)
    whole = ResidualWrite(
        torch.empty(total, shape[-1], dtype=dtype),
        torch.empty(total, shape[-1], dtype=options.out_dtype) if options.norm else None,
        torch.empty(total, len(STATISTICS)) if options.stats else None,
    )
    for start in range(0, total, n_rows):
        rows = slice(start, start + n_rows)
        out = ResidualWrite(*(None if v is None else v[rows] for v in whole))  # type: ignore[arg-type]
        part = {name: values[rows] for name, values in flat.items()}
        for value, target in zip(_write(replace(operands, **part), options, out), out, strict=True):
            if value is not None and target is not None and value is not target:
                target.copy_(value)
    shaped = (None if v is None else v.reshape(*shape[:-1], v.shape[-1]) for v in whole)
    return ResidualWrite(*shaped)  # type: ignore[arg-type]


def _write(
    operands: WriteOperands, options: WriteOptions, out: ResidualWrite | None = None
) -> ResidualWrite:
    """One write; results may be put into `out` where its dtype is that of the arithmetic."""
    wide = widen(operands)
    target, spare = (
        value if value is not None and value.dtype == wide.stream.dtype else None
        for value in (out or (None, None))[:2]
    )
    write, exact = combine(wide, target)
    stored, new = _stored(exact, operands.stream.dtype)
    new_norm = stats = normed = None
    if options.stats or options.norm == "rms":
        new_norm = torch.linalg.vector_norm(new, dim=-1, keepdim=True)
    if options.stats and new_norm is not None:
        stats = measure(wide, write, new, new_norm)
    if options.norm is not None:
        if spare is None and write is not wide.branch and not _is_recorded(operands):
            spare = write
        normed = normalize(new, wide, options, new_norm, spare)
    return ResidualWrite(stored, normed, stats)


def widen(operands: WriteOperands) -> WriteOperands:
    """The operands with stream and branch in the dtype of the arithmetic."""
    double = torch.float64 in (operands.stream.dtype, operands.branch.dtype)
    compute = torch.float64 if double else torch.float32
    return replace(operands, stream=operands.stream.to(compute), branch=operands.branch.to(compute))


def combine(
    wide: WriteOperands, out: Tensor | None = None
) -> tuple[Float[Tensor, "*batch d_model"], Float[Tensor, "*batch d_model"]]:
    """The write and the new stream before it is rounded; operands as from `widen`."""
    write = wide.branch
    if wide.layer_scale is not None:
        write = wide.layer_scale.to(write.dtype) * write
    write = _times(wide.gain, write)
    return write, torch.add(_times(wide.skip_scale, wide.stream), write, out=out)


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


def _is_recorded(operands: WriteOperands) -> bool:
    """Whether a graph (autograd's or a compiler's) may still need what lies between the steps."""
    if torch.compiler.is_compiling():
        return True
    tensors = (value for value in vars(operands).values() if isinstance(value, Tensor))
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
    stream_norm = torch.linalg.vector_norm(stream, dim=-1)
    is_host = new.device.type == "cpu" and not torch.compiler.is_compiling()
    rest = _rest_on_host if is_host else _rest
    dot, top, channel, count = rest(stream, write, new, new_norm[..., 0])
    columns = (write_norm, stream_norm, new_norm[..., 0], dot, top, channel, count, branch_norm)
    return torch.stack(columns, dim=-1)


def _rest(stream: Tensor, write: Tensor, new: Tensor, new_norm: Tensor) -> tuple[Tensor, ...]:
    """The statistics that are no norms, in their order."""
    return torch.linalg.vecdot(stream, write), *_extremes(new)


def _extremes(new: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Largest magnitude, its channel and the number of non-finite channels of each row."""
    finite = torch.isfinite(new)
    top, channel = new.abs().masked_fill(~finite, torch.inf).max(dim=-1)
    return top, channel.to(new.dtype), (new.shape[-1] - finite.sum(-1)).to(new.dtype)


def _rest_on_host(
    stream: Tensor, write: Tensor, new: Tensor, new_norm: Tensor
) -> tuple[Tensor, ...]:
    """As `_rest`; NumPy reads a row at memory speed where torch writes temporaries.

    Only rows whose norm is not finite can hold a non-finite value: only they are looked at twice.
    """
    width, shape = new.shape[-1], new_norm.shape
    x, u, rows = (values.detach().reshape(-1, width).numpy() for values in (stream, write, new))
    high, low, each = rows.argmax(-1), rows.argmin(-1), np.arange(len(rows))
    above, below = rows[each, high], -rows[each, low]
    channel = np.where(above > below, high, np.where(below > above, low, np.minimum(high, low)))
    found = np.zeros((4, len(rows)), dtype=rows.dtype)
    found[0], found[1], found[2] = np.vecdot(x, u), np.maximum(above, below), channel
    columns = torch.from_numpy(found).reshape(4, *shape)
    odd = ~torch.isfinite(new_norm)
    if odd.any():
        columns[1:, odd] = torch.stack(_extremes(new[odd]))
    return tuple(columns)
