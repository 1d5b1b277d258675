"""What are the gradients of a residual write, in one pass over memory?  The backward kernels.

With ``g = dnormed * weight`` and xhat recomputed from the stored stream:

    dnew   = dstream + rstd * (g - mean(g) - xhat * mean(g * xhat))      mean(g): "layer" only
    dx     = skip_scale * dnew
    dy     = gain * layer_scale * dnew
    dweight = sum over rows of dnormed * xhat;   dbias = sum over rows of dnormed
    t      = sum over rows of dnew * branch;     dlayer_scale = gain * t;   dgain = <layer_scale, t>
    dskip_scale = sum over rows and channels of dnew * stream

(t carries both gradients, also where gain is 0.)  All arithmetic is float32.  A program walks its
rows with the column sums in registers and leaves one partial sum; torch adds the partials.  No
atomics: the same input gives the same bits.

Beyond the width where the column sums no longer fit in registers the launch table takes two
kernels: `write_backward` without column sums, then `write_backward_columns`, which reads again and
sums over rows for a slice of the channels.
"""

# A kernel's parameters are pointers and constants of the compiler: no annotation would say more.
# ruff: noqa: ANN001, ANN201, C901, N803, PLR0913, PLR0915, TID253
# pyright: basic, reportArgumentType=false, reportPossiblyUnboundVariable=false

import triton
import triton.language as tl

from resstream.kernels.triton_forward import LAYER_NORM, NO_NORM, factor, norm_weight, round_to


@triton.jit
def merge_pair(a, b, a2, b2):
    """Two sums at once."""
    return a + a2, b + b2


@triton.jit
def row_coefficients(g, xhat, WIDTH: tl.constexpr, NORM: tl.constexpr, INTERP: tl.constexpr):
    """``mean(g * xhat)`` and, for "layer", ``mean(g)`` of each row."""
    if NORM == LAYER_NORM:
        if INTERP:
            along, total = tl.sum(g * xhat, axis=1), tl.sum(g, axis=1)
        else:
            along, total = tl.reduce((g * xhat, g), 1, merge_pair)
        return (along * (1.0 / WIDTH))[:, None], (total * (1.0 / WIDTH))[:, None]
    along = (tl.sum(g * xhat, axis=1) * (1.0 / WIDTH))[:, None]
    return along, tl.zeros_like(along)


@triton.jit
def normed_row(new_ptr, rstd_ptr, mean_ptr, row, channel, inside, n_rows, WIDTH: tl.constexpr):
    """Xhat before any rounding, and 1/std, from the stored stream."""
    new = tl.load(new_ptr + row * WIDTH + channel, mask=inside, other=0.0).to(tl.float32)
    rstd = tl.load(rstd_ptr + row, mask=row < n_rows, other=0.0)
    if mean_ptr is not None:
        new = new - tl.load(mean_ptr + row, mask=row < n_rows, other=0.0)
    return new * rstd, rstd


@triton.jit
def write_backward(
    dstream_ptr,
    dnormed_ptr,
    new_ptr,
    branch_ptr,
    stream_ptr,
    rstd_ptr,
    mean_ptr,
    weight_ptr,
    layer_scale_ptr,
    gain_ptr,
    skip_ptr,
    dx_ptr,
    dy_ptr,
    coefficients_ptr,
    dweight_ptr,
    dbias_ptr,
    dscale_ptr,
    dskip_ptr,
    gain,
    skip,
    weight_offset,
    n_rows,
    dstream_stride,
    dnormed_stride,
    branch_stride,
    stream_stride,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    NORM: tl.constexpr,
    CAST_HF: tl.constexpr,
    INTERP: tl.constexpr,
):
    """Gradients of stream and branch, and partial sums of those whose pointer is given."""
    program = tl.program_id(0)
    channel = tl.arange(0, BLOCK)[None, :]
    scale = factor(gain, gain_ptr)
    if layer_scale_ptr is not None:
        layer_scale = tl.load(layer_scale_ptr + channel, mask=channel < WIDTH, other=0.0)
        scale = scale * layer_scale.to(tl.float32)
    keep = factor(skip, skip_ptr)
    if NORM != NO_NORM:
        weight = norm_weight(weight_ptr, weight_offset, channel, WIDTH)
    dweight = tl.zeros((ROWS, BLOCK), tl.float32)
    dbias = tl.zeros((ROWS, BLOCK), tl.float32)
    dscale = tl.zeros((ROWS, BLOCK), tl.float32)
    dskip = tl.zeros((ROWS,), tl.float32)

    for start in range(program * ROWS, n_rows, tl.num_programs(0) * ROWS):
        row = (start + tl.arange(0, ROWS).to(tl.int64))[:, None]
        inside = (row < n_rows) & (channel < WIDTH)
        dnew = tl.zeros((ROWS, BLOCK), tl.float32)
        if dstream_ptr is not None:
            at = row * dstream_stride + channel
            dnew = tl.load(dstream_ptr + at, mask=inside, other=0.0).to(tl.float32)
        if NORM != NO_NORM:
            xhat, rstd = normed_row(
                new_ptr, rstd_ptr, mean_ptr, row, channel, inside, n_rows, WIDTH
            )
            at = row * dnormed_stride + channel
            dnormed = tl.load(dnormed_ptr + at, mask=inside, other=0.0).to(tl.float32)
            g = dnormed * weight
            along, total = row_coefficients(g, xhat, WIDTH, NORM, INTERP)
            dnew += rstd * (g - total - xhat * along)
            if coefficients_ptr is not None:
                tl.store(coefficients_ptr + row * 2, along, mask=row < n_rows)
                tl.store(coefficients_ptr + row * 2 + 1, total, mask=row < n_rows)
            if dweight_ptr is not None:
                if CAST_HF:
                    xhat = round_to(xhat, dnormed_ptr.dtype.element_ty, INTERP)
                dweight += dnormed * xhat
            if dbias_ptr is not None:
                dbias += dnormed
        if dx_ptr is not None:
            dx = round_to(keep * dnew, dx_ptr.dtype.element_ty, INTERP)
            tl.store(dx_ptr + row * WIDTH + channel, dx.to(dx_ptr.dtype.element_ty), mask=inside)
        if dy_ptr is not None:
            dy = round_to(scale * dnew, dy_ptr.dtype.element_ty, INTERP)
            tl.store(dy_ptr + row * WIDTH + channel, dy.to(dy_ptr.dtype.element_ty), mask=inside)
        if dscale_ptr is not None:
            at = row * branch_stride + channel
            dscale += dnew * tl.load(branch_ptr + at, mask=inside, other=0.0).to(tl.float32)
        if dskip_ptr is not None:
            at = row * stream_stride + channel
            x = tl.load(stream_ptr + at, mask=inside, other=0.0).to(tl.float32)
            dskip += tl.sum(dnew * x, axis=1)

    at = program * WIDTH + tl.arange(0, BLOCK)
    below = tl.arange(0, BLOCK) < WIDTH
    if dweight_ptr is not None:
        tl.store(dweight_ptr + at, tl.sum(dweight, axis=0), mask=below)
    if dbias_ptr is not None:
        tl.store(dbias_ptr + at, tl.sum(dbias, axis=0), mask=below)
    if dscale_ptr is not None:
        tl.store(dscale_ptr + at, tl.sum(dscale, axis=0), mask=below)
    if dskip_ptr is not None:
        tl.store(dskip_ptr + program, tl.sum(dskip, axis=0))


@triton.jit
def write_backward_columns(
    dstream_ptr,
    dnormed_ptr,
    new_ptr,
    branch_ptr,
    rstd_ptr,
    mean_ptr,
    coefficients_ptr,
    weight_ptr,
    dweight_ptr,
    dbias_ptr,
    dscale_ptr,
    weight_offset,
    n_rows,
    dstream_stride,
    dnormed_stride,
    branch_stride,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    NORM: tl.constexpr,
    CAST_HF: tl.constexpr,
    INTERP: tl.constexpr,
):
    """Column sums of COLUMNS channels over every n-th tile of ROWS rows."""
    slice_rows = tl.program_id(1)
    channel = (tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    if NORM != NO_NORM:
        weight = norm_weight(weight_ptr, weight_offset, channel, WIDTH)
    dweight = tl.zeros((ROWS, COLUMNS), tl.float32)
    dbias = tl.zeros((ROWS, COLUMNS), tl.float32)
    dscale = tl.zeros((ROWS, COLUMNS), tl.float32)

    for start in range(slice_rows * ROWS, n_rows, tl.num_programs(1) * ROWS):
        row = (start + tl.arange(0, ROWS).to(tl.int64))[:, None]
        inside = (row < n_rows) & (channel < WIDTH)
        dnew = tl.zeros((ROWS, COLUMNS), tl.float32)
        if dscale_ptr is not None and dstream_ptr is not None:
            at = row * dstream_stride + channel
            dnew = tl.load(dstream_ptr + at, mask=inside, other=0.0).to(tl.float32)
        if NORM != NO_NORM:
            xhat, rstd = normed_row(
                new_ptr, rstd_ptr, mean_ptr, row, channel, inside, n_rows, WIDTH
            )
            at = row * dnormed_stride + channel
            dnormed = tl.load(dnormed_ptr + at, mask=inside, other=0.0).to(tl.float32)
            if dscale_ptr is not None:
                along = tl.load(coefficients_ptr + row * 2, mask=row < n_rows, other=0.0)
                total = tl.load(coefficients_ptr + row * 2 + 1, mask=row < n_rows, other=0.0)
                dnew += rstd * (dnormed * weight - total - xhat * along)
            if dweight_ptr is not None:
                if CAST_HF:
                    xhat = round_to(xhat, dnormed_ptr.dtype.element_ty, INTERP)
                dweight += dnormed * xhat
            if dbias_ptr is not None:
                dbias += dnormed
        if dscale_ptr is not None:
            at = row * branch_stride + channel
            dscale += dnew * tl.load(branch_ptr + at, mask=inside, other=0.0).to(tl.float32)

    lane = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    at = slice_rows * WIDTH + lane
    if dweight_ptr is not None:
        tl.store(dweight_ptr + at, tl.sum(dweight, axis=0), mask=lane < WIDTH)
    if dbias_ptr is not None:
        tl.store(dbias_ptr + at, tl.sum(dbias, axis=0), mask=lane < WIDTH)
    if dscale_ptr is not None:
        tl.store(dscale_ptr + at, tl.sum(dscale, axis=0), mask=lane < WIDTH)
