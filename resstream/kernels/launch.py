"""How do the Triton kernels get their rows, outputs and grid?  Launch of forward and backward.

Nothing here knows autograd.  Operands may have any strides: a tensor whose last axis is contiguous
is read where it lies, row stride and all (also 0, as in an expanded gradient); any other is copied
first.  Outputs are contiguous.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from resstream.kernels import launch_table
from resstream.kernels.launch_table import Launch
from resstream.kernels.reference import WriteOperands, WriteOptions

_NORM_CODES = {None: 0, "rms": 1, "layer": 2}

INTERPRETER_PROGRAMS = 2
"""Programs that walk over rows in the interpreter: more than one, so that partial sums are used."""


class Forward(NamedTuple):
    """Outputs of the forward kernel; the last two are for the backward pass."""

    new: Tensor
    normed: Tensor | None
    stats: Tensor | None
    rstd: Tensor | None
    mean: Tensor | None


class Saved(NamedTuple):
    """What the backward kernels read beside the incoming gradients."""

    new: Tensor | None
    rstd: Tensor | None
    mean: Tensor | None


class Gradients(NamedTuple):
    """One value for each of `WriteOperands`: its gradient or None, or whether that is wanted."""

    stream: Any
    branch: Any
    weight: Any
    bias: Any
    layer_scale: Any
    gain: Any
    skip_scale: Any


def forward(operands: WriteOperands, options: WriteOptions, *, save: bool) -> Forward:
    """Run the forward kernel.

    Args:
        operands: Factors are numbers or one-element tensors, parameters ``[d_model]``.
        options: What to compute.
        save: Whether a backward pass will follow.
    """
    stream, branch = _rows(operands.stream), _rows(operands.branch)
    n_rows, width = stream.shape
    out = outputs(operands, options, save=save)
    launch = _choice(launch_table.FORWARD, width, stream.device)
    if n_rows and launch:
        from resstream.kernels.triton_forward import write_forward

        kernel: Any = write_forward

        with _on(stream.device):
            kernel[((n_rows + launch.rows - 1) // launch.rows,)](
                stream, branch, *out, *_parameters(operands, "weight", "bias", "layer_scale"),
                *_factors(operands), *_numbers(operands), options.eps, options.weight_offset,
                n_rows, stream.stride(0), branch.stride(0),
                BLOCK=_block(width), WARPS=launch.warps, PIECE=_piece(launch, width),
                **_constants(width, launch, options, options.norm),
            )  # fmt: skip
    return out


def outputs(operands: WriteOperands, options: WriteOptions, *, save: bool) -> Forward:
    """The tensors that `forward` fills; those not asked for are None."""
    stream, has_norm = operands.stream, options.norm is not None
    rows, fresh = stream.shape[:-1], _maker(stream.device)
    return Forward(
        torch.empty(stream.shape, dtype=stream.dtype, device=stream.device),
        fresh(has_norm, *stream.shape, dtype=options.out_dtype),
        fresh(options.stats, *rows, 8),
        fresh(has_norm and save, *rows),
        fresh(options.norm == "layer" and save, *rows),
    )


def obtainable(options: WriteOptions, has_dnormed: bool, wanted: Sequence[bool]) -> Gradients:
    """Which of the wanted gradients exist: those of the norm only if its output was used."""
    flags = Gradients(*wanted)
    if options.norm is not None and has_dnormed:
        return flags
    return flags._replace(weight=False, bias=False)


def is_shared(operands: WriteOperands, wanted: Sequence[bool]) -> bool:
    """Whether stream and branch are given one gradient: no factor, no scale, one dtype."""
    factors = (operands.gain, operands.skip_scale)
    plain = all(not isinstance(f, Tensor) and f == 1.0 for f in factors)
    same = operands.stream.dtype == operands.branch.dtype
    return plain and same and operands.layer_scale is None and wanted[0] and wanted[1]


def backward(
    operands: WriteOperands,
    options: WriteOptions,
    saved: Saved,
    grads: tuple[Tensor | None, Tensor | None],
    wanted: Sequence[bool],
) -> Gradients:
    """Run the backward kernels.

    Args:
        operands: As in the forward pass; stream and branch are read only for the gradients of
            `skip_scale`, and of `layer_scale` and `gain`.
        options: As in the forward pass.
        saved: Left by the forward pass.
        grads: Gradients of the new stream and of the normed stream; None where unused.
        wanted: Which gradients are wanted, in the order of `WriteOperands`.

    Returns:
        The gradients.  Where stream and branch have the same one, it is the same tensor.
    """
    found = obtainable(options, grads[1] is not None, wanted)
    return _Backward(operands, options, saved, grads, found).run()


class _Backward:
    """One backward pass: what it reads, what it leaves, and the kernels in between."""

    def __init__(
        self,
        operands: WriteOperands,
        options: WriteOptions,
        saved: Saved,
        grads: tuple[Tensor | None, Tensor | None],
        wanted: Any,
    ) -> None:
        self.operands, self.options, self.saved, self.wanted = operands, options, saved, wanted
        self.dstream, self.dnormed = (None if g is None else _rows(g) for g in grads)
        self.norm = None if self.dnormed is None else options.norm
        self.shape, self.width = operands.stream.shape, operands.stream.shape[-1]
        self.device = operands.stream.device
        self.shared = is_shared(operands, wanted)
        self.n_rows = operands.stream.numel() // self.width

    def run(self) -> Gradients:
        """Launch the one kernel or the two."""
        one = _choice(launch_table.BACKWARD, self.width, self.device)
        # Without rows no program runs, and nothing would fill the sums.
        fresh, wants = _maker(self.device, zero=self.n_rows == 0), self._column_sums()
        if one:
            n_slices = n_programs = _programs(one, self.n_rows, self.device)
            sums = tuple(fresh(want, n_slices, self.width) for want in wants)
            skip = self._run_rows(one, n_programs, None, sums)
        else:
            rows = _choice(launch_table.BACKWARD_ROWS, self.width, self.device)
            assert rows is not None, "the plan lets no wider row through"
            n_slices = _programs(launch_table.COLUMN_SLICE, self.n_rows, self.device)
            sums = tuple(fresh(want, n_slices, self.width) for want in wants)
            need = wants[2] and self.norm is not None
            coefficients = fresh(need, self.n_rows, 2)
            n_programs = _programs(rows, self.n_rows, self.device)
            skip = self._run_rows(rows, n_programs, coefficients, (None, None, None))
            self._run_columns(n_slices, coefficients, sums)
        return self._finish(skip, *sums)

    def _column_sums(self) -> tuple[bool, bool, bool]:
        wanted = self.wanted
        return wanted.weight, wanted.bias, wanted.layer_scale or wanted.gain

    def _run_rows(
        self, launch: Launch, n_programs: int, coefficients: Tensor | None, sums: tuple[Any, ...]
    ) -> tuple[Tensor | None, ...]:
        from resstream.kernels.triton_backward import write_backward

        kernel: Any = write_backward

        operands, wanted = self.operands, self.wanted
        fresh = _maker(self.device, zero=self.n_rows == 0)
        stream, branch = operands.stream, operands.branch
        dx = fresh(wanted.stream, *self.shape, dtype=stream.dtype)
        dy = fresh(wanted.branch and not self.shared, *self.shape, dtype=branch.dtype)
        dskip = fresh(wanted.skip_scale, n_programs)
        branch = _rows(branch) if sums[2] is not None else None
        stream = _rows(stream) if wanted.skip_scale else None
        reads = (self.dstream, self.dnormed, self._new(), branch, stream)
        strides = (_stride(reads[i]) for i in (0, 1, 3, 4))
        if self.n_rows:
            with _on(self.device):
                kernel[(n_programs,)](
                    *reads, self.saved.rstd, self.saved.mean,
                    *_parameters(operands, "weight", "layer_scale"), *_factors(operands),
                    dx, dy, coefficients, *sums, dskip, *_numbers(operands),
                    self.options.weight_offset, self.n_rows, *strides,
                    BLOCK=_block(self.width),
                    **_constants(self.width, launch, self.options, self.norm),
                )  # fmt: skip
        return dx, dx if self.shared else dy, dskip

    def _run_columns(
        self, n_slices: int, coefficients: Tensor | None, sums: tuple[Tensor | None, ...]
    ) -> None:
        from resstream.kernels.triton_backward import write_backward_columns

        kernel: Any = write_backward_columns

        launch = launch_table.COLUMN_SLICE
        if not self.n_rows or all(total is None for total in sums):
            return
        branch = _rows(self.operands.branch) if sums[2] is not None else None
        reads = (self.dstream, self.dnormed, self._new(), branch)
        strides = (_stride(reads[i]) for i in (0, 1, 3))
        with _on(self.device):
            kernel[((self.width + launch.block - 1) // launch.block, n_slices)](
                *reads, self.saved.rstd, self.saved.mean, coefficients,
                *_parameters(self.operands, "weight"), *sums, self.options.weight_offset,
                self.n_rows, *strides, COLUMNS=launch.block,
                **_constants(self.width, launch, self.options, self.norm),
            )  # fmt: skip

    def _new(self) -> Tensor | None:
        return None if self.norm is None or self.saved.new is None else _rows(self.saved.new)

    def _finish(
        self,
        row_grads: tuple[Tensor | None, ...],
        weight: Tensor | None,
        bias: Tensor | None,
        scale: Tensor | None,
    ) -> Gradients:
        """Add the partial sums and give each gradient its parameter's shape and dtype."""
        operands, (dx, dy, dskip) = self.operands, row_grads
        scale = _total(scale)
        dgain = scale
        if scale is not None and operands.layer_scale is not None:
            dgain = scale * operands.layer_scale.to(torch.float32)
            gain = operands.gain
            scale = scale * (gain.reshape(()).float() if isinstance(gain, Tensor) else gain)
        found = (
            dx,
            dy,
            _total(weight),
            _total(bias),
            scale if self.wanted.layer_scale else None,
            dgain.sum() if dgain is not None and self.wanted.gain else None,
            None if dskip is None else dskip.sum(),
        )
        like = (getattr(operands, name) for name in Gradients._fields)
        return Gradients(*(_shaped(g, t) for g, t in zip(found, like, strict=True)))


def _total(partial: Tensor | None) -> Tensor | None:
    return None if partial is None else partial.sum(0)


def _shaped(grad: Tensor | None, like: Any) -> Tensor | None:
    return None if grad is None else grad.to(like.dtype).reshape(like.shape)


def _rows(values: Tensor) -> Tensor:
    """A view ``[n_rows, d_model]`` with a contiguous last axis, or a copy where there is none."""
    width = values.shape[-1]
    if values.stride(-1) != 1 and width > 1:
        values = values.contiguous()
    return values.reshape(values.numel() // width, width)


def _stride(rows: Tensor | None) -> int:
    return 0 if rows is None else rows.stride(0)


def _maker(device: torch.device, *, zero: bool = False) -> Any:
    """A function that makes an empty (or zero) tensor, or None where none is wanted."""
    make = torch.zeros if zero else torch.empty

    def fresh(want: bool, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor | None:
        return make(shape, dtype=dtype, device=device) if want else None

    return fresh


def _parameters(operands: WriteOperands, *names: str) -> tuple[Tensor | None, ...]:
    found = (getattr(operands, name) for name in names)
    return tuple(None if p is None else p.contiguous() for p in found)


def _factors(operands: WriteOperands) -> tuple[Tensor | None, ...]:
    return tuple(f if isinstance(f, Tensor) else None for f in (operands.gain, operands.skip_scale))


def _numbers(operands: WriteOperands) -> tuple[float, ...]:
    return tuple(
        1.0 if isinstance(f, Tensor) else float(f) for f in (operands.gain, operands.skip_scale)
    )


def _block(width: int) -> int:
    return 1 << (width - 1).bit_length()


def _piece(launch: Launch, width: int) -> int:
    """Channels that a warp holds side by side: 16 bytes of a 16-bit type in each thread."""
    threads = 32 if torch.version.hip is None else 64
    return min(8 * threads, _block(width) // launch.warps)


def _constants(width: int, launch: Launch, options: WriteOptions, norm: Any) -> dict[str, Any]:
    return {
        "WIDTH": width,
        "ROWS": launch.rows,
        "NORM": _NORM_CODES[norm],
        "CAST_HF": options.cast == "hf",
        "INTERP": is_interpreted(),
        "num_warps": launch.warps,
        # Contraction to fused multiply-adds would round differently from torch's own operations.
        "enable_fp_fusion": False,
    }


def _choice(table: tuple[Launch, ...], width: int, device: torch.device) -> Launch | None:
    launch = launch_table.choose(table, _block(width))
    if launch and device.type == "cpu":
        return Launch(
            launch.block, launch.warps, launch_table.INTERPRETER_ROWS, 1, "time goes by operation"
        )
    return launch


def _programs(launch: Launch, n_rows: int, device: torch.device) -> int:
    """Programs that walk over the rows: what the device holds, or fewer where rows are few."""
    resident = INTERPRETER_PROGRAMS
    if device.type != "cpu":
        resident = _cores(device) * launch.programs_per_core
    return max(1, min(resident, (n_rows + launch.rows - 1) // launch.rows))


@cache
def _cores(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def _on(device: torch.device) -> AbstractContextManager[Any]:
    return nullcontext() if device.type == "cpu" else torch.cuda.device(device)


@cache
def is_interpreted() -> bool:
    """Whether Triton runs its kernels in the CPU interpreter (``TRITON_INTERPRET=1``)."""
    from triton import knobs

    return bool(knobs.runtime.interpret)
