"""Is a write fused with the norm that reads it next, and what does that norm then find?

What fuses is not ``norm -> sublayer -> add`` but ``add -> norm of the next reader``: both touch the
same row, so `resstream.kernels` does them in one pass over memory.  The write hands its result to
the reading norm ahead of time (`Ahead`); the norm uses it only if it is asked for the very tensor
that was written, with the very weight.  So a hook that only reads costs nothing, and behind a hook
that replaces or changes the stream the norm is computed from what is there.

A gradient must not miss a path: `normed` is a function of the write's operands, not of the stream
that a hook sees.  While gradients are recorded, nothing is handed on past a hook.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from resstream.errors import ConfigError
from resstream.kernels.dispatch import Plan, plan_write, run_planned
from resstream.kernels.reference import Norm, ResidualWrite, WriteOperands, WriteOptions

Fusion = Literal["auto", "off", "torch", "triton"]
"""``auto``: Triton where it can run, separate operators elsewhere; ``torch``: the reference of the
fused write; ``triton``: the kernels, and the reference for writes that they can't express."""

SEPARATE = Plan("torch", "separate operators")
"""What ran where nothing was fused."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """A normed stream that its reader was given before it asked."""

    stream: Tensor
    version: int
    weight: Tensor | None
    weight_version: int | None
    normed: Tensor

    @classmethod
    def of(cls, stream: Tensor, weight: Tensor | None, normed: Tensor) -> "Ahead | None":
        """What is handed on with `stream` as it is now; None if a change would not show."""
        version = version_of(stream)
        if version is None:
            return None
        return cls(stream, version, weight, _version(weight), normed)

    def belongs_to(self, stream: Tensor, weight: Tensor | None) -> bool:
        """True if neither stream nor weight was replaced or changed since."""
        is_same = stream is self.stream and weight is self.weight
        versions = self.version, self.weight_version
        return is_same and (version_of(stream), _version(weight)) == versions


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Where torch keeps the hooks of a module; it has no public question for them."""


class Reader(NamedTuple):
    """The norm that reads a stream, as the fused write needs it."""

    norm: Norm
    weight: Tensor | None
    bias: Tensor | None
    eps: float
    dtype: torch.dtype
    """Of the normed stream."""


def is_watched(*modules: nn.Module | None) -> bool:
    """True if somebody hooked one of `modules`."""
    there = [module for module in modules if module is not None]
    return any(getattr(module, kind) for module in there for kind in _HOOKS)


def may_fuse(stream: Tensor, fusion: Fusion) -> bool:
    """True unless it is clear without looking at the write that nothing will be fused."""
    # A compiler fuses by itself, and on a CPU separate operators are as quick.
    if fusion == "off" or torch.compiler.is_compiling():
        return False
    return fusion != "auto" or stream.device.type != "cpu"


def plan_fused(operands: WriteOperands, options: WriteOptions, fusion: Fusion) -> Plan | None:
    """Which implementation of a write that `may_fuse` runs; None: separate operators."""
    if not isinstance(operands.skip_scale, Tensor) and operands.skip_scale == 0.0:
        return None  # without a skip path the stream is not 0 * x, but gone
    if fusion == "torch":
        return plan_write(operands, options, "torch")
    if fusion == "triton":
        try:
            return plan_write(operands, options, "triton")
        except ConfigError as err:
            return Plan("torch", str(err))
    planned = plan_write(operands, options)
    return planned if planned.impl == "triton" else None


def fuse(  # noqa: PLR0913  (the operands of one write)
    stream: Float[Tensor, "*batch d_model"],
    branch: Float[Tensor, "*batch d_model"],
    *,
    scale: Tensor | None,
    skip_scale: float | Tensor,
    reader: Reader | None,
    stats: bool,
    fusion: Fusion,
) -> tuple[ResidualWrite | None, Plan]:
    """One write and the norm of its reader in one pass; None where that is not to be.

    Args:
        stream: The stream before the write, as the skip path carries it.
        branch: What the sublayer gave.
        scale: Multiplies the branch.
        skip_scale: Multiplies the stream.
        reader: The norm behind the write.
        stats: Whether the statistics of the write are wanted.
        fusion: What was asked for.
    """
    is_channels = scale is not None and scale.shape == stream.shape[-1:]
    operands = WriteOperands(
        stream=stream,
        branch=branch,
        weight=None if reader is None else reader.weight,
        bias=None if reader is None else reader.bias,
        layer_scale=scale if is_channels else None,
        gain=1.0 if scale is None or is_channels else scale,
        skip_scale=skip_scale,
    )
    options = WriteOptions(
        norm=None if reader is None else reader.norm,
        out_dtype=branch.dtype if reader is None else reader.dtype,
        eps=1e-6 if reader is None else reader.eps,
        stats=stats,
    )
    plan = plan_fused(operands, options, fusion)
    if plan is None:
        return None, SEPARATE
    return run_planned(plan, operands, options), plan


def version_of(tensor: Tensor) -> int | None:
    """How often a tensor was changed in place; None in inference mode, which does not count."""
    return None if tensor.is_inference() else tensor._version


def _version(weight: Tensor | None) -> int | None:
    return None if weight is None else version_of(weight)
