"""Which implementation runs a residual write, and why?  The face of the fused write.

`residual_write` plans and runs; `plan_write` only plans, and tells the reason, so that a model or a
report can say what ran:

>>> plan_write(WriteOperands(stream=x, branch=y), options)
Plan(impl='torch', reason='tensors are on cpu')

=========== ==========================================================================
impl        runs
=========== ==========================================================================
"auto"      Triton where it can express the write and the tensors are on a GPU; else torch
"torch"     the reference, anywhere
"triton"    the Triton kernels or an error; on a CPU only in Triton's interpreter
"compile"   the reference through `torch.compile`: on a CPU about twice as fast from a
            width of some hundreds on, after seconds of compilation
=========== ==========================================================================
"""

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from resstream.errors import ConfigError
from resstream.kernels import launch_table
from resstream.kernels.reference import (
    Cast,
    Norm,
    ResidualWrite,
    WriteOperands,
    WriteOptions,
    reference_write,
)

Impl = Literal["auto", "torch", "triton", "compile"]

_IMPLS = ("auto", "torch", "triton", "compile")
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_MIN_CAPABILITY = (8, 0)


class Plan(NamedTuple):
    """What will run a write."""

    impl: Literal["torch", "triton", "compile"]
    reason: str
    """Why it is this one; lower case, no full stop."""


def residual_write(  # noqa: PLR0913 (the operands of one formula; see `reference`)
    stream: Float[Tensor, "*batch d_model"],
    branch: Float[Tensor, "*batch d_model"],
    *,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    norm: Norm | None = None,
    layer_scale: Tensor | None = None,
    gain: float | Tensor = 1.0,
    skip_scale: float | Tensor = 1.0,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    cast: Cast = "end",
    out_dtype: torch.dtype | None = None,
    stats: bool = False,
    impl: Impl = "auto",
) -> ResidualWrite:
    """Add a scaled branch to the stream, norm the result for its next reader, measure it.

    ``new = skip_scale * stream + gain * (layer_scale * branch)``, then the norm of `new` as stored.
    Formula, dtypes and rounding points stand in `resstream.kernels.reference`.

    Args:
        stream: The stream before the write.
        branch: Raw output of the sublayer, of the stream's shape.
        weight: Weight of the norm that reads the new stream.
        bias: Bias of that norm.
        norm: Kind of that norm; None: only the new stream is computed.
        layer_scale: LayerScale's gamma.
        gain: Factor on the branch: a number, a one-element tensor (ReZero, SkipInit), or a tensor
            that broadcasts (AdaLN's gate; runs the reference).
        skip_scale: Factor on the stream, of the same kinds (DeepNorm's alpha).
        eps: Added to the mean square or variance.
        weight_offset: Added to the weight; 1 for zero-centred weights (Gemma).
        cast: ``"hf"`` rounds before the weight (Llama), ``"end"`` once at the end.
        out_dtype: Dtype of the normed stream; None: the branch's.
        stats: Whether to return the eight statistics of `reference.STATISTICS` for each position.
        impl: See the top of this module.

    Returns:
        New stream, normed stream (or None) and statistics (or None).

    Raises:
        ValueError: Shapes or dtypes don't fit, or a parameter of the norm is given without one.
        ConfigError: `impl` is unknown, or is "triton" and can't run this write.

    Example:
        >>> stream, normed, stats = residual_write(
        ...     stream, branch, weight=norm.weight, norm="rms", stats=True)
    """
    operands = WriteOperands(
        stream=stream,
        branch=branch,
        weight=weight,
        bias=bias,
        layer_scale=layer_scale,
        gain=gain,
        skip_scale=skip_scale,
    )
    options = WriteOptions(
        norm=norm,
        out_dtype=branch.dtype if out_dtype is None else out_dtype,
        eps=eps,
        weight_offset=weight_offset,
        cast=cast,
        stats=stats,
    )
    return run_planned(plan_write(operands, options, impl), operands, options)


def run_planned(plan: Plan, operands: WriteOperands, options: WriteOptions) -> ResidualWrite:
    """Run a write as `plan_write` planned it."""
    return _runner(plan.impl)(operands, options)


def plan_write(operands: WriteOperands, options: WriteOptions, impl: Impl = "auto") -> Plan:
    """Say which implementation runs this write, and why; runs nothing.

    Args:
        operands: Tensors of the write.
        options: What to compute.
        impl: What was asked for.

    Raises:
        ValueError: See `residual_write`.
        ConfigError: See `residual_write`.
    """
    _check(operands, options)
    if impl not in _IMPLS:
        raise ConfigError(f"impl must be one of {', '.join(_IMPLS)}, got {impl!r}")
    if impl in ("torch", "compile"):
        return Plan(impl, "asked for")
    obstacle = _inexpressible(operands, options) or _unavailable(operands.stream.device, impl)
    if obstacle is None:
        return Plan("triton", "asked for" if impl == "triton" else "tensors are on a GPU")
    if impl == "triton":
        raise ConfigError(
            f"impl='triton' can't run this residual write: {obstacle}; "
            "impl='auto' falls back to torch"
        )
    return Plan("torch", obstacle)


def _check(operands: WriteOperands, options: WriteOptions) -> None:
    """Refuse what no implementation can give a meaning to."""
    stream, branch = operands.stream, operands.branch
    if stream.shape != branch.shape or stream.ndim == 0 or stream.shape[-1] == 0:
        raise ValueError(
            "stream and branch must have one shape [..., d_model], "
            f"got {list(stream.shape)} and {list(branch.shape)}"
        )
    dtypes = (stream.dtype, branch.dtype, options.out_dtype)
    if not all(dtype.is_floating_point for dtype in dtypes):
        raise ValueError(f"stream, branch and out_dtype must be floating point, got {dtypes}")
    if options.norm not in (None, "rms", "layer"):
        raise ValueError(f"norm must be 'rms', 'layer' or None, got {options.norm!r}")
    if options.cast not in ("end", "hf"):
        raise ValueError(f"cast must be 'end' or 'hf', got {options.cast!r}")
    if options.norm is None and not (operands.weight is None and operands.bias is None):
        raise ValueError("weight and bias belong to a norm, got them with norm=None")


def _inexpressible(operands: WriteOperands, options: WriteOptions) -> str | None:
    """Why the Triton kernels don't cover this write; None if they do."""
    stream, width = operands.stream, operands.stream.shape[-1]
    for dtype in (stream.dtype, operands.branch.dtype, options.out_dtype):
        if dtype not in _DTYPES:
            return f"the kernels compute in float32, got {dtype}"
    if width > launch_table.MAX_WIDTH:
        return f"d_model is {width}; the kernels hold rows of up to {launch_table.MAX_WIDTH}"
    for name in ("weight", "bias", "layer_scale"):
        value = getattr(operands, name)
        if value is not None and tuple(value.shape) != (width,):
            return f"{name} has shape {list(value.shape)}; the kernels take [{width}]"
    for name in ("gain", "skip_scale"):
        value = getattr(operands, name)
        if isinstance(value, Tensor) and value.numel() != 1:
            return f"{name} has shape {list(value.shape)}; the kernels take one element"
    return _scattered(operands)


def _scattered(operands: WriteOperands) -> str | None:
    for name, value in vars(operands).items():
        if isinstance(value, Tensor) and value.device != operands.stream.device:
            return f"{name} is on {value.device}, the stream on {operands.stream.device}"
    return None


def _unavailable(device: torch.device, impl: Impl) -> str | None:
    """Why the Triton kernels can't run on this device; None if they can."""
    if device.type == "cpu" and impl != "triton":
        return "tensors are on cpu"
    if not _has_triton():
        return "triton is not installed"
    if device.type == "cpu":
        return None if _is_interpreted() else "tensors are on cpu"
    if device.type != "cuda":
        return f"the kernels are for CUDA and ROCm devices, tensors are on {device.type}"
    if torch.version.hip is None and torch.cuda.get_device_capability(device) < _MIN_CAPABILITY:
        return "the device is older than compute capability 8.0 (no bfloat16)"
    return None


# To torch.compile the answer is a constant.  `torch.compiler.assume_constant_result` sets this mark
# too, but imports torch._dynamo for it, which takes seconds.
_unavailable._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def _is_interpreted() -> bool:
    from resstream.kernels.launch import is_interpreted

    return is_interpreted()


def _runner(impl: str) -> Callable[[WriteOperands, WriteOptions], ResidualWrite]:
    if impl == "triton":
        from resstream.kernels.autograd import fused_write

        return fused_write
    return _compiled() if impl == "compile" else reference_write


@cache
def _compiled() -> Callable[[WriteOperands, WriteOptions], ResidualWrite]:
    return torch.compile(reference_write)
