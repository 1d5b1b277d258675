"""How does torch.compile see the fused write?  As two operators with known shapes.

``resstream::write_forward`` and ``resstream::write_backward`` wrap the raw launch.  An operator
can't return None: what was not asked for comes back as an empty tensor.  Nor may it return one
tensor twice: where stream and branch share their gradient, the branch's comes back empty and
`_backward` gives autograd the stream's.
"""

from typing import Any

import torch
from torch import Tensor

from resstream.kernels import launch
from resstream.kernels.reference import ResidualWrite, WriteOperands, WriteOptions

_OPERANDS = (
    "Tensor stream, Tensor branch, Tensor? weight, Tensor? bias, Tensor? layer_scale, "
    "Tensor? gain, Tensor? skip_scale, float gain_number, float skip_number"
)
_OPTIONS = "str norm, ScalarType out_dtype, float eps, float weight_offset, str cast, bool stats"
_N_OPERANDS = len(launch.Gradients._fields)


def compiled_write(values: list[Any], options: WriteOptions) -> ResidualWrite:
    """Run the forward operator on the operands' values, in the order of `launch.Gradients`."""
    tensors = [v if isinstance(v, Tensor) else None for v in values]
    save = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    flat = (*tensors, *_numbers(values), *_pack(options), save)
    new, normed, stats, _, _ = torch.ops.resstream.write_forward(*flat)
    return ResidualWrite(new, normed if options.norm else None, stats if options.stats else None)


def operands_of(values: Any) -> WriteOperands:
    """Operands from their values in the order of `launch.Gradients`."""
    return WriteOperands(**dict(zip(launch.Gradients._fields, values, strict=True)))


def needed(values: Any, wanted: Any) -> list[Any]:
    """Operands that the backward pass reads; the rest would be kept alive for nothing.

    The branch is read for the gradients of `layer_scale` and `gain` (also where the gain is 0), the
    stream for that of `skip_scale`; otherwise one element stands for shape, dtype and device.
    """
    kept = list(values)
    if not wanted[6]:
        kept[0] = _outline(values[0])
    if not (wanted[4] or wanted[5]):
        kept[1] = _outline(values[1])
    return kept


def _outline(values: Tensor) -> Tensor:
    return values.new_empty(()).expand(values.shape)


def _numbers(values: Any) -> tuple[float, float]:
    gain, skip = (1.0 if isinstance(f, Tensor) else float(f) for f in values[5:7])
    return gain, skip


def _pack(options: WriteOptions) -> tuple[Any, ...]:
    norm = options.norm or ""
    rest = (options.eps, options.weight_offset, options.cast, options.stats)
    return norm, options.out_dtype, *rest


def _unpack(flat: tuple[Any, ...]) -> tuple[WriteOperands, WriteOptions]:
    """Operands and options from an operator's arguments: 7 tensors, 2 numbers, 6 options."""
    tensors, numbers, rest = flat[:_N_OPERANDS], flat[_N_OPERANDS : _N_OPERANDS + 2], flat[-6:]
    factors = (n if t is None else t for t, n in zip(tensors[5:], numbers, strict=True))
    norm, out_dtype, eps, offset, cast, stats = rest
    options = WriteOptions(
        norm=norm or None,
        out_dtype=out_dtype,
        eps=eps,
        weight_offset=offset,
        cast=cast,
        stats=stats,
    )
    return operands_of((*tensors[:5], *factors)), options


@torch.library.custom_op(
    "resstream::write_forward",
    mutates_args=(),
    schema=f"({_OPERANDS}, {_OPTIONS}, bool save) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _write_forward(*flat: Any) -> tuple[Tensor, ...]:
    operands, options = _unpack(flat[:-1])
    found = launch.forward(operands, options, save=flat[-1])
    return tuple(_filled(found, operands.stream))


@_write_forward.register_fake
def _(*flat: Any) -> tuple[Tensor, ...]:
    operands, options = _unpack(flat[:-1])
    return tuple(_filled(launch.outputs(operands, options, save=flat[-1]), operands.stream))


@torch.library.custom_op(
    "resstream::write_backward",
    mutates_args=(),
    schema=(
        f"(Tensor? dnew, Tensor? dnormed, Tensor new, Tensor rstd, Tensor mean, bool[] wanted, "
        f"{_OPERANDS}, {_OPTIONS}) -> ({', '.join(['Tensor'] * _N_OPERANDS)})"
    ),
)
def _write_backward(*flat: Any) -> tuple[Tensor, ...]:
    dnew, dnormed, new, rstd, mean, wanted, *rest = flat
    operands, options = _unpack(tuple(rest))
    has_norm, has_mean = options.norm is not None, options.norm == "layer"
    saved = launch.Saved(new, rstd if has_norm else None, mean if has_mean else None)
    found = launch.backward(operands, options, saved, (dnew, dnormed), tuple(wanted))
    own = _own_gradients(operands, options, dnormed is not None, wanted)
    return tuple(_filled(found if own[1] else found._replace(branch=None), operands.stream))


@_write_backward.register_fake
def _(*flat: Any) -> tuple[Tensor, ...]:
    _, dnormed, _, _, _, wanted, *rest = flat
    operands, options = _unpack(tuple(rest))
    own = _own_gradients(operands, options, dnormed is not None, wanted)
    values = (getattr(operands, name) for name in launch.Gradients._fields)
    found = (
        v.new_empty(v.shape) if is_own else None for v, is_own in zip(values, own, strict=True)
    )
    return tuple(_filled(found, operands.stream))


def _own_gradients(
    operands: WriteOperands, options: WriteOptions, has_dnormed: bool, wanted: Any
) -> list[bool]:
    """Which operands get a gradient tensor that is theirs alone."""
    own = list(launch.obtainable(options, has_dnormed, wanted))
    own[1] = own[1] and not launch.is_shared(operands, wanted)
    return own


def _filled(found: Any, like: Tensor) -> list[Tensor]:
    return [like.new_empty(0) if value is None else value for value in found]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    wanted = ctx.needs_input_grad[:_N_OPERANDS]
    tensors = needed(inputs[:_N_OPERANDS], wanted)
    new, _, _, rstd, mean = output
    ctx.rest, ctx.wanted = inputs[_N_OPERANDS:-1], wanted
    ctx.save_for_backward(new, rstd, mean, *tensors)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
    n_inputs = _N_OPERANDS + len(ctx.rest) + 1
    norm = ctx.rest[2]
    # Without a norm the normed stream is an empty tensor, for which torch may send a gradient.
    dnew, dnormed = grads[0], grads[1] if norm else None
    if dnew is None and dnormed is None:
        return (None,) * n_inputs
    new, rstd, mean, *tensors = ctx.saved_tensors
    found = torch.ops.resstream.write_backward(
        dnew, dnormed, new, rstd, mean, list(ctx.wanted), *tensors, *ctx.rest
    )
    operands, options = _unpack((*tensors, *ctx.rest))
    given = launch.obtainable(options, dnormed is not None, ctx.wanted)
    gradients = [g if is_given else None for g, is_given in zip(found, given, strict=True)]
    if launch.is_shared(operands, ctx.wanted):
        gradients[1] = gradients[0]
    return (*gradients, *(None,) * (n_inputs - _N_OPERANDS))


torch.library.register_autograd("resstream::write_forward", _backward, setup_context=_setup_context)
