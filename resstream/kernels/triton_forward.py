"""How is a residual write done in one pass over memory?  The forward kernel.

A program takes ROWS rows of the stream, whole.  Per row it reads stream and branch once, and writes
the new stream, its normed form and, if wanted, one 32-byte sector of statistics.  All arithmetic is
float32.  Rounding points, as in `reference`: the new stream when stored, xhat if CAST_HF, `normed`.
Row numbers are int64: 65,536 rows of 32,768 channels already pass 2^31 elements.

`INTERP` marks Triton's CPU interpreter, which casts float32 to bfloat16 by truncation and takes
seconds for a reduction with a combine function of its own; both have a plain form here.
"""

# A kernel's parameters are pointers and constants of the compiler: no annotation would say more.
# ruff: noqa: ANN001, ANN201, N803, PLR0913, TID253
# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false

import triton
import triton.language as tl

NO_NORM: tl.constexpr = tl.constexpr(0)
RMS_NORM: tl.constexpr = tl.constexpr(1)
LAYER_NORM: tl.constexpr = tl.constexpr(2)


@triton.jit
def round_to(values, dtype: tl.constexpr, INTERP: tl.constexpr):
    """Values that `dtype` can hold, rounded to nearest even, still as float32."""
    if INTERP and dtype == tl.bfloat16:
        bits = values.to(tl.uint32, bitcast=True)
        rounded = bits + 0x7FFF + ((bits >> 16) & 1)
        rounded = tl.where(values != values, bits | 0x400000, rounded) & 0xFFFF0000
        return rounded.to(tl.float32, bitcast=True)
    return values.to(dtype).to(tl.float32)


@triton.jit
def factor(number, pointer):
    """A factor given as a number, or as a one-element tensor that stays on the device."""
    if pointer is not None:
        return tl.load(pointer).to(tl.float32)
    return number


@triton.jit
def norm_weight(weight_ptr, weight_offset, channel, width: tl.constexpr):
    """Weight of the norm as float32; 0 beyond the width, 1 where there is none."""
    if weight_ptr is not None:
        weight = tl.load(weight_ptr + channel, mask=channel < width, other=0.0)
        return weight.to(tl.float32) + weight_offset
    return tl.full(channel.shape, 1.0, tl.float32)


@triton.jit
def merge(uu, xx, zz, xu, yy, bad, top, at, uu2, xx2, zz2, xu2, yy2, bad2, top2, at2):
    """Statistics of two parts of a row put together; among equal magnitudes the first channel."""
    take = (top2 > top) | ((top2 == top) & (at2 < at))
    new_top = tl.where(take, top2, top)
    new_at = tl.where(take, at2, at)
    return (uu + uu2, xx + xx2, zz + zz2, xu + xu2, yy + yy2, bad + bad2, new_top, new_at)


@triton.jit
def row_statistics(x, y, u, new, channel, INTERP: tl.constexpr):
    """Sums, extreme and its channel for each row: one exchange between warps, not eight."""
    finite = tl.abs(new) < float("inf")
    size = tl.where(finite, tl.abs(new), float("inf"))
    bad = tl.where(finite, 0.0, 1.0)
    at = tl.broadcast_to(channel, new.shape)
    if INTERP:
        top = tl.max(size, axis=1)
        first = tl.min(tl.where(size == top[:, None], at, 0x7FFFFFFF), axis=1)
        uu = tl.sum(u * u, axis=1)
        xx = tl.sum(x * x, axis=1)
        zz = tl.sum(new * new, axis=1)
        xu = tl.sum(x * u, axis=1)
        return uu, xx, zz, xu, tl.sum(y * y, axis=1), tl.sum(bad, axis=1), top, first
    return tl.reduce((u * u, x * x, new * new, x * u, y * y, bad, size, at), 1, merge)


@triton.jit
def store_statistics(pointer, row, n_rows, uu, xx, zz, xu, yy, bad, top, at):
    """One sector of eight floats a row, in the order of `reference.STATISTICS`."""
    slot = tl.arange(0, 8)[None, :]
    value = tl.where(slot == 0, tl.sqrt_rn(uu)[:, None], tl.sqrt_rn(xx)[:, None])
    value = tl.where(slot == 2, tl.sqrt_rn(zz)[:, None], value)
    value = tl.where(slot == 3, xu[:, None], value)
    value = tl.where(slot == 4, top[:, None], value)
    value = tl.where(slot == 5, at.to(tl.float32)[:, None], value)
    value = tl.where(slot == 6, bad[:, None], value)
    value = tl.where(slot == 7, tl.sqrt_rn(yy)[:, None], value)
    tl.store(pointer + row * 8 + slot, value, mask=row < n_rows)


@triton.jit
def write_forward(
    stream_ptr,
    branch_ptr,
    new_ptr,
    normed_ptr,
    stats_ptr,
    rstd_ptr,
    mean_ptr,
    weight_ptr,
    bias_ptr,
    layer_scale_ptr,
    gain_ptr,
    skip_ptr,
    gain,
    skip,
    eps,
    weight_offset,
    n_rows,
    stream_stride,
    branch_stride,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    NORM: tl.constexpr,
    CAST_HF: tl.constexpr,
    INTERP: tl.constexpr,
):
    """New stream, normed stream and statistics of ROWS rows; absent pointers are None."""
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    channel = tl.arange(0, BLOCK)[None, :]
    inside = (row < n_rows) & (channel < WIDTH)
    x = tl.load(stream_ptr + row * stream_stride + channel, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(branch_ptr + row * branch_stride + channel, mask=inside, other=0.0).to(tl.float32)
    u = y
    if layer_scale_ptr is not None:
        scale = tl.load(layer_scale_ptr + channel, mask=channel < WIDTH, other=0.0)
        u = scale.to(tl.float32) * u
    u = factor(gain, gain_ptr) * u
    exact = factor(skip, skip_ptr) * x + u
    new = round_to(exact, new_ptr.dtype.element_ty, INTERP)
    at = row * WIDTH + channel
    tl.store(new_ptr + at, new.to(new_ptr.dtype.element_ty), mask=inside)

    if stats_ptr is not None:
        uu, xx, zz, xu, yy, bad, top, first = row_statistics(x, y, u, new, channel, INTERP)
        store_statistics(stats_ptr, row, n_rows, uu, xx, zz, xu, yy, bad, top, first)
        square = zz
    elif NORM == RMS_NORM:
        square = tl.sum(new * new, axis=1)

    if NORM != NO_NORM:
        if NORM == LAYER_NORM:
            mean = tl.sum(new, axis=1)[:, None] * (1.0 / WIDTH)
            if mean_ptr is not None:
                tl.store(mean_ptr + row, mean, mask=row < n_rows)
            # Lanes beyond the width hold 0, not the mean: unmasked they would add to the variance.
            centred = tl.where(channel < WIDTH, new - mean, 0.0)
            square = tl.sum(centred * centred, axis=1)
        else:
            centred = new
        rstd = tl.div_rn(1.0, tl.sqrt_rn(square * (1.0 / WIDTH) + eps))[:, None]
        xhat = centred * rstd
        if CAST_HF:
            xhat = round_to(xhat, normed_ptr.dtype.element_ty, INTERP)
        normed = xhat * norm_weight(weight_ptr, weight_offset, channel, WIDTH)
        if bias_ptr is not None:
            bias = tl.load(bias_ptr + channel, mask=channel < WIDTH, other=0.0)
            normed = normed + bias.to(tl.float32)
        normed = round_to(normed, normed_ptr.dtype.element_ty, INTERP)
        tl.store(normed_ptr + at, normed.to(normed_ptr.dtype.element_ty), mask=inside)
        if rstd_ptr is not None:
            tl.store(rstd_ptr + row, rstd, mask=row < n_rows)
