"""How is a residual write done in one pass over memory?  The forward kernel.

A program takes ROWS rows of the stream, whole.  Per row it reads stream and branch once, and writes
the new stream, its normed form and, if wanted, one 32-byte sector of statistics.  All arithmetic is
float32.  Rounding points, as in `reference`: the new stream when stored, xhat if CAST_HF, `normed`.
Row numbers are int64: 65,536 rows of 32,768 channels already pass 2^31 elements.

The statistics are one reduction of a tuple, so that the warps of a row meet at few barriers.
`INTERP` marks Triton's CPU interpreter, which casts float32 to bfloat16 by truncation and takes
seconds for a reduction with a combine function of its own; both have a plain form here.
"""

# A kernel's parameters are pointers and constants of the compiler: no annotation would say more.
# ruff: noqa: ANN001, ANN201, N803, PLR0913, TID253
# pyright: basic, reportArgumentType=false, reportCallIssue=false
# pyright: reportAssignmentType=false, reportPossiblyUnboundVariable=false

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
def pack(low, high):
    """Two 32-bit values as one of 64."""
    low = low.to(tl.uint32, bitcast=True).to(tl.int64)
    return (high.to(tl.uint32, bitcast=True).to(tl.int64) << 32) | low


@triton.jit
def low_half(pair):
    """First value of `pack`, a float."""
    return (pair & 0xFFFFFFFF).to(tl.uint32).to(tl.float32, bitcast=True)


@triton.jit
def high_half(pair):
    """Second value of `pack`, a float."""
    return (pair >> 32).to(tl.uint32).to(tl.float32, bitcast=True)


@triton.jit
def add_pairs(a, b):
    """Sums of both halves."""
    return pack(low_half(a) + low_half(b), high_half(a) + high_half(b))


@triton.jit
def merge_packed(sums, rest, key, sums2, rest2, key2):
    """As `merge`, on packed values."""
    return add_pairs(sums, sums2), add_pairs(rest, rest2), tl.maximum(key, key2)


@triton.jit
def merge_warps(uu, xx, zz, xu, yy, bad, top, at):
    """Put together the statistics of pieces of a row that lie in different warps.

    Triton 3.9 exchanges each operand of a reduction behind a barrier of its own, up to 128 bits of
    it at once: so eight values travel as three operands.  The key orders by magnitude, then by the
    lowest channel.
    """
    sums = tl.join(pack(uu, xx), pack(zz, xu))
    rest = pack(yy, bad)
    key = pack(0x7FFFFFFF - at, top)
    sums, rest, key = tl.reduce((sums, tl.join(rest, rest), tl.join(key, key)), 1, merge_packed)
    first, second = tl.split(sums)
    rest, _ = tl.split(rest)
    key, _ = tl.split(key)
    at = 0x7FFFFFFF - (key & 0x7FFFFFFF).to(tl.int32)
    return (
        low_half(first), high_half(first), low_half(second), high_half(second),
        low_half(rest), high_half(rest), high_half(key), at,
    )  # fmt: skip


@triton.jit
def row_statistics(
    x, y, u, new, channel, PIECE: tl.constexpr, WARPS: tl.constexpr, INTERP: tl.constexpr
):
    """Sums, extreme and its channel for each row.

    PIECE is what a warp holds contiguously, so that the first reductions stay inside warps; another
    value would give the same sums through more exchanges.
    """
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
    values = (u * u, x * x, new * new, x * u, y * y, bad, size, at)
    if WARPS == 1:
        return tl.reduce(values, 1, merge)
    cut: tl.constexpr = (new.shape[0], new.shape[1] // (WARPS * PIECE), WARPS, PIECE)
    uu, xx, zz, xu, yy, bad, top, at = values
    pieces = (
        tl.reshape(uu, cut), tl.reshape(xx, cut), tl.reshape(zz, cut), tl.reshape(xu, cut),
        tl.reshape(yy, cut), tl.reshape(bad, cut), tl.reshape(top, cut), tl.reshape(at, cut),
    )  # fmt: skip
    # Over a thread's own pieces first: the other order took 29 registers more.
    uu, xx, zz, xu, yy, bad, top, at = tl.reduce(tl.reduce(pieces, 1, merge), 2, merge)
    return merge_warps(uu, xx, zz, xu, yy, bad, top, at)


@triton.jit
def store_statistics(pointer, row, n_rows, uu, xx, zz, xu, yy, bad, top, first):
    """One sector of eight floats a row, in the order of `reference.STATISTICS`."""
    below = row < n_rows
    at = pointer + row * 8
    tl.store(at, tl.sqrt_rn(uu)[:, None], mask=below)
    tl.store(at + 1, tl.sqrt_rn(xx)[:, None], mask=below)
    tl.store(at + 2, tl.sqrt_rn(zz)[:, None], mask=below)
    tl.store(at + 3, xu[:, None], mask=below)
    tl.store(at + 4, top[:, None], mask=below)
    tl.store(at + 5, first.to(tl.float32)[:, None], mask=below)
    tl.store(at + 6, bad[:, None], mask=below)
    tl.store(at + 7, tl.sqrt_rn(yy)[:, None], mask=below)


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
    WARPS: tl.constexpr,
    PIECE: tl.constexpr,
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
        uu, xx, zz, xu, yy, bad, top, first = row_statistics(
            x, y, u, new, channel, PIECE, WARPS, INTERP
        )
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
