"""What the kernels must return, in float64, and how far off they may be.

The oracle is the reference of `resstream.kernels.reference`, run in float64 on what the kernel
stored: nothing is typed twice.  A bound is made of half a unit in the last place of what is stored
and a few float32 roundings of the terms that are added, since a sum that cancels has no small
relative error.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch

from resstream.kernels import launch
from resstream.kernels.dispatch import residual_write
from resstream.kernels.reference import (
    WriteOperands,
    WriteOptions,
    combine,
    measure,
    normalize,
)

UNIT = 2.0**-24
"""Half a unit in the last place of float32 at 1."""

NAMES = launch.Gradients._fields


@dataclass(frozen=True)
class Case:
    """One combination of everything that a residual write can be given."""

    stream: torch.dtype = torch.float32
    branch: torch.dtype = torch.float32
    norm: Any = "rms"
    layer_scale: bool = True
    gain: Any = "tensor"
    skip_scale: Any = 1.0
    stats: bool = True
    cast: Any = "end"
    bias: bool = False
    offset: float = 0.0
    rows: tuple[int, ...] = (5,)
    width: int = 97
    seed: int = 0

    def build(self, device: str) -> tuple[WriteOperands, WriteOptions]:
        """Random operands, the same ones for the same case; nothing is 0 or 1 by accident."""
        draw = torch.Generator().manual_seed(self.seed)

        def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.randn(*shape, generator=draw).to(dtype).to(device)

        operands = WriteOperands(
            stream=normal(*self.rows, self.width, dtype=self.stream),
            branch=normal(*self.rows, self.width, dtype=self.branch),
            weight=normal(self.width) if self.norm else None,
            bias=normal(self.width) if self.norm and self.bias else None,
            layer_scale=normal(self.width) if self.layer_scale else None,
            gain=normal(1) if self.gain == "tensor" else self.gain,
            skip_scale=normal(1).reshape(()) if self.skip_scale == "tensor" else self.skip_scale,
        )
        options = WriteOptions(
            norm=self.norm,
            out_dtype=self.branch,
            weight_offset=self.offset,
            cast=self.cast,
            stats=self.stats,
        )
        return operands, options


LAYOUTS = {
    "row stride": lambda x: torch.cat([x, x], -1)[:, : x.shape[-1]],
    "other order of axes": lambda x: x.t().contiguous().t(),
    "expanded rows": lambda x: x[:1].expand_as(x),
    "off by one element": lambda x: torch.cat([x.flatten()[:1], x.flatten()])[1:].view_as(x),
    "every second row": lambda x: torch.cat([x, x])[::2],
    "every second channel": lambda x: torch.cat([x, x], -1)[:, ::2],
}
"""Ways in which a matrix may lie in memory."""


def run(operands: WriteOperands, options: WriteOptions, impl: Any = "triton") -> Any:
    """The public function on operands and options; Any, as every test knows what it asked for."""
    return residual_write(**vars(operands), **vars(options), impl=impl)


def in_double(operands: WriteOperands, *, grad: bool = False) -> WriteOperands:
    """The operands in float64, as leaves of a graph if wanted."""
    values = {
        name: v.detach().double().requires_grad_(grad) if isinstance(v, torch.Tensor) else v
        for name, v in vars(operands).items()
    }
    return WriteOperands(**values)


def half_ulp(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Half a unit in the last place of `dtype` at each of the (float64) values."""
    info = torch.finfo(dtype)
    size = values.abs().nan_to_num(nan=0.0, posinf=0.0).clamp_min(info.tiny)
    return torch.exp2(torch.floor(torch.log2(size))) * info.eps / 2


def assert_within(found: torch.Tensor, wanted: torch.Tensor, bound: torch.Tensor | float) -> None:
    """Every value within its bound; the message names the worst."""
    error = (found.double() - wanted).abs()
    assert torch.isfinite(error).all(), f"{(~torch.isfinite(error)).sum()} errors are not finite"
    excess = error - bound
    assert (excess <= 0).all(), f"worst excess {excess.max():.3g} at error {error.max():.3g}"


def check_forward(operands: WriteOperands, options: WriteOptions, found: Any) -> None:
    """Hold new stream, normed stream and statistics against float64."""
    double = in_double(operands)
    write, exact = combine(double)
    terms = (double.skip_scale * double.stream).abs() + write.abs()
    dtype = operands.stream.dtype
    assert found.stream.dtype == dtype
    assert_within(found.stream, exact, half_ulp(exact, dtype) + 4 * UNIT * terms)
    stored = found.stream.double()
    if options.norm is None:
        assert found.normed is None
    else:
        _check_normed(double, options, stored, found.normed)
    if not options.stats:
        assert found.stats is None
    else:
        _check_stats(measure(double, write, stored, stored.norm(dim=-1, keepdim=True)), found.stats)


def _check_normed(
    double: WriteOperands, options: WriteOptions, stored: torch.Tensor, normed: torch.Tensor
) -> None:
    assert normed.dtype == options.out_dtype
    wide = replace(options, out_dtype=torch.float64)
    wanted = normalize(stored, double, wide)
    xhat = normalize(stored, replace(double, weight=None, bias=None), wide)
    weight = torch.ones_like(xhat) if double.weight is None else double.weight
    weight = (weight + options.weight_offset).abs()
    bias = 0.0 if double.bias is None else double.bias.abs()
    std = (stored - stored.mean(-1, keepdim=True)).square().mean(-1, keepdim=True).sqrt()
    spread = stored.abs().amax(-1, keepdim=True) / std.clamp_min(1e-3)
    near = xhat.abs() + (spread.nan_to_num(1.0) if options.norm == "layer" else 0.0)
    bound = half_ulp(wanted, options.out_dtype) * 1.001 + 8 * UNIT * (near * weight + bias)
    if options.cast == "hf":
        bound = bound + half_ulp(xhat, options.out_dtype) * 1.001 * weight
    assert_within(normed, wanted, bound)


def _check_stats(wanted: torch.Tensor, found: torch.Tensor) -> None:
    assert found.dtype == torch.float32
    exact, norms = [4, 5, 6], [0, 1, 2, 7]
    assert torch.equal(found[..., exact].double(), wanted[..., exact])
    assert_within(found[..., norms], wanted[..., norms], 1e-6 * wanted[..., norms] + 1e-30)
    assert_within(found[..., 3], wanted[..., 3], 4e-6 * wanted[..., 0] * wanted[..., 1] + 1e-30)
