"""What gradients the kernels must return, in float64, and how far off they may be."""

from dataclasses import replace
from typing import Any

import torch

from resstream.kernels.reference import WriteOperands, WriteOptions, combine, normalize
from tests.kernels.oracle import (
    NAMES,
    UNIT,
    Case,
    assert_within,
    check_forward,
    half_ulp,
    in_double,
    run,
)


def leaves(operands: WriteOperands, names=NAMES) -> WriteOperands:
    """The operands as leaves that want a gradient."""
    values = {
        name: v.detach().requires_grad_(name in names) if isinstance(v, torch.Tensor) else v
        for name, v in vars(operands).items()
    }
    return WriteOperands(**values)


def incoming(found: Any, seed: int = 7) -> tuple[Any, Any]:
    """Random gradients of the new stream and of the normed one."""
    draw = torch.Generator().manual_seed(seed)
    grads = [
        None if t is None else torch.randn(t.shape, generator=draw).to(t.dtype).to(t.device)
        for t in found[:2]
    ]
    return grads[0], grads[1]


def gradients(operands: WriteOperands, found: Any, grads: tuple[Any, Any]) -> dict[str, Any]:
    """Run the backward pass; a gradient for each operand that wants one."""
    pairs = [
        (o, g) for o, g in zip(found[:2], grads, strict=True) if o is not None and g is not None
    ]
    inputs = {
        n: v for n, v in vars(operands).items() if isinstance(v, torch.Tensor) and v.requires_grad
    }
    outputs, sent = zip(*pairs, strict=True)
    back = torch.autograd.grad(outputs, list(inputs.values()), sent, allow_unused=True)
    return dict(zip(inputs, back, strict=True))


def check(case: Case, device: str, use=(True, True)) -> None:
    """Run a case forward and backward and hold both against float64."""
    plain, options = case.build(device)
    operands = leaves(plain)
    found = run(operands, options)
    check_forward(plain, options, found)
    grads = tuple(g if wanted else None for g, wanted in zip(incoming(found), use, strict=True))
    back = gradients(operands, found, (grads[0], grads[1]))
    check_gradients(plain, options, found.stream.detach(), (grads[0], grads[1]), back)


def wanted_gradients(
    operands: WriteOperands,
    options: WriteOptions,
    stored: torch.Tensor,
    grads: tuple[torch.Tensor | None, torch.Tensor | None],
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """For each operand its gradient in float64, and the size of the terms that it sums up.

    The rounding of the stored stream is passed straight through, as the definition says.
    """
    double = in_double(operands, grad=True)
    _, exact = combine(double)
    new = exact + (stored.double() - exact).detach()
    outputs, incoming = [], []
    if grads[0] is not None:
        outputs.append(new)
        incoming.append(grads[0].double())
    if grads[1] is not None:
        outputs.append(normalize(new, double, options))
        incoming.append(grads[1])
    (dnew,) = torch.autograd.grad(outputs, [exact], incoming, retain_graph=True)
    leaves = {n: v for n, v in vars(double).items() if isinstance(v, torch.Tensor)}
    found: Any = torch.autograd.grad(outputs, list(leaves.values()), incoming, allow_unused=True)
    sizes = _sizes(double, options, new.detach(), dnew, grads[1])
    return {
        name: (grad, sizes[name])
        for name, grad in zip(leaves, found, strict=True)
        if grad is not None
    }


def _sizes(
    double: WriteOperands,
    options: WriteOptions,
    new: torch.Tensor,
    dnew: torch.Tensor,
    dnormed: torch.Tensor | None,
) -> dict[str, torch.Tensor]:
    """Magnitude against which float32 roundings of each gradient are measured."""
    width = new.shape[-1]
    inner = torch.zeros_like(dnew)
    scale = xhat = torch.ones_like(dnew)
    if dnormed is not None:
        plain = replace(options, out_dtype=torch.float64, cast="end")
        xhat = normalize(new, replace(double, weight=None, bias=None), plain).detach()
        weight = 1.0 if double.weight is None else double.weight + options.weight_offset
        centre = new.mean(-1, keepdim=True) if options.norm == "layer" else 0.0
        rstd = ((new - centre).square().mean(-1, keepdim=True) + options.eps).rsqrt()
        inner = (dnormed.double() * weight).abs().detach() * rstd
        # Channels that are nearly equal: the mean's rounding weighs as much as the variance.
        spread = new.abs().amax(-1, keepdim=True) * rstd if options.norm == "layer" else 0.0
        scale = (1 + xhat.abs()) * (1 + spread)
    row = (dnew.abs() + scale * inner.amax(-1, keepdim=True)).amax(-1, keepdim=True)
    row = row.expand_as(dnew)
    ls = 1.0 if double.layer_scale is None else double.layer_scale.detach()
    gain, skip = (f.detach() if isinstance(f, torch.Tensor) else f for f in _factors(double))
    deep = max(1.0, new.numel() / width) ** 0.5
    branch, stream = double.branch.detach(), double.stream.detach()

    def summed(terms: torch.Tensor) -> torch.Tensor:
        return deep * terms.reshape(-1, width).norm(dim=0)

    dh = torch.zeros_like(dnew) if dnormed is None else dnormed.double().abs()
    ones = torch.ones_like(dnew)
    return {
        "stream": abs(skip) * row,
        "branch": abs(gain * ls * ones) * row,
        "weight": summed(dh * (xhat.abs() + 1)),
        "bias": summed(dh),
        "layer_scale": summed(gain * row * branch),
        "gain": summed(ls * row * branch).norm() * width**0.5,
        "skip_scale": summed(row * stream).norm() * width**0.5,
    }


def _factors(operands: WriteOperands) -> tuple[Any, Any]:
    return operands.gain, operands.skip_scale


def check_gradients(
    operands: WriteOperands,
    options: WriteOptions,
    stored: torch.Tensor,
    grads: tuple[torch.Tensor | None, torch.Tensor | None],
    found: dict[str, torch.Tensor | None],
) -> None:
    """Hold gradients against float64 autograd through the reference."""
    wanted = wanted_gradients(operands, options, stored, grads)
    for name, gradient in found.items():
        if name not in wanted:
            assert gradient is None, f"{name} has a gradient, the reference has none"
            continue
        exact, size = wanted[name]
        assert gradient is not None, f"no gradient of {name}"
        assert gradient.shape == exact.shape
        bound = half_ulp(exact, gradient.dtype) * 1.001 + 8 * UNIT * size
        if options.cast == "hf" and name == "weight":
            bound = bound + torch.finfo(options.out_dtype).eps / 2 * size
        assert_within(gradient, exact, bound)
