"""How do gradients reach the Triton kernels?  In eager mode and under torch.compile.

Eager mode takes an `autograd.Function` around the raw launch: it costs the host a third of what a
custom operator costs.  While torch.compile traces, the same launch runs as the operators
``resstream::write_forward`` and ``resstream::write_backward``, whose shapes the compiler knows
through fake implementations.  Both differentiate once; a second derivative is refused.
"""

from typing import Any

import torch
from torch import Tensor

from resstream.kernels import launch
from resstream.kernels.operators import compiled_write, needed, operands_of
from resstream.kernels.reference import ResidualWrite, WriteOperands, WriteOptions


def fused_write(operands: WriteOperands, options: WriteOptions) -> ResidualWrite:
    """Run the Triton kernels, differentiably.

    Args:
        operands: On one device; factors are numbers or one-element tensors.
        options: What to compute.
    """
    tensors = [getattr(operands, name) for name in launch.Gradients._fields]
    if torch.compiler.is_compiling():
        return compiled_write(tensors, options)
    if torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in tensors):
        return ResidualWrite(*_FusedWrite.apply(options, *tensors))
    found = launch.forward(operands, options, save=False)
    return ResidualWrite(found.new, found.normed, found.stats)


class _FusedWrite(torch.autograd.Function):
    """The raw launch with its gradients, for eager mode."""

    @staticmethod
    def forward(ctx: Any, options: WriteOptions, *values: Any) -> tuple[Any, ...]:
        found = launch.forward(operands_of(values), options, save=True)
        wanted = ctx.needs_input_grad[1:]
        kept = needed(values, wanted)
        ctx.options, ctx.wanted = options, wanted
        ctx.numbers = [None if isinstance(v, Tensor) else v for v in kept]
        new = found.new if options.norm else None
        tensors = [v if isinstance(v, Tensor) else None for v in kept]
        ctx.save_for_backward(new, found.rstd, found.mean, *tensors)
        ctx.set_materialize_grads(False)
        if found.stats is not None:
            ctx.mark_non_differentiable(found.stats)
        return found.new, found.normed, found.stats

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        if torch.is_grad_enabled():
            # With create_graph torch would take these gradients for constants, silently.
            raise RuntimeError(
                "the fused residual write can be differentiated once, and a graph of its gradients "
                "was asked for (create_graph=True); use impl='torch' for second derivatives"
            )
        new, rstd, mean, *tensors = ctx.saved_tensors
        pairs = zip(tensors, ctx.numbers, strict=True)
        operands = operands_of([n if t is None else t for t, n in pairs])
        if grads[0] is None and grads[1] is None:
            return (None,) * (1 + len(tensors))
        saved = launch.Saved(new, rstd, mean)
        found = launch.backward(operands, ctx.options, saved, (grads[0], grads[1]), ctx.wanted)
        return (None, *found)
