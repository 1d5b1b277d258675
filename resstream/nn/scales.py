"""What multiplies a branch, and what becomes of the stream, when a write is made?

A `WriteScale` belongs to one write (ReZero: to both writes of a block).  It is always float32:
a gate that trains by steps of 1e-3 of its own size would stand still in bfloat16.
"""

from collections.abc import Callable
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float
from torch import Tensor, nn


class WriteTerms(NamedTuple):
    """What goes into one write beside the branch; tensors broadcast against the stream."""

    scale: Tensor | None = None
    """Multiplies the branch."""
    read_gain: float | Tensor = 1.0
    """Multiplies what the branch reads."""
    read_shift: Tensor | None = None
    """Is added to what the branch reads."""


class WriteScale(nn.Module):
    """The write of the plain rule: ``x' = skip_scale * x + branch``; base of all others."""

    is_scaled = False
    """True if something multiplies the branch; only then is there a scale hook."""
    changes_read = False
    """True if something is done to what the branch reads, behind the norm."""

    def __init__(self, skip_scale: float = 1.0, read_gain: float = 1.0) -> None:
        super().__init__()
        self.skip_scale = skip_scale
        self.read_gain = read_gain
        self.changes_read = self.changes_read or read_gain != 1.0

    def forward(
        self, stream: Float[Tensor, "*batch d_read"], condition: Tensor | None = None
    ) -> WriteTerms:
        """What goes into the write, given the stream before it and the model's condition."""
        del stream, condition
        return WriteTerms(read_gain=self.read_gain)

    def skip(self, scale: Tensor | None) -> float | Tensor:
        """What multiplies the stream, given the scale of the branch."""
        del scale
        return self.skip_scale

    def carried(self, stream: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """What stands in for the stream on the skip path."""
        return stream

    def reset_parameters(self) -> None:
        """Set every learned scale to its published start."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # `model.to(bfloat16)` comes through here: take the device from it, not the precision.
        def keep_precision(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            if tensor.is_meta or moved.dtype.itemsize >= torch.float32.itemsize:
                return moved
            return tensor.to(moved.device)

        return super()._apply(keep_precision, recurse)


class ConstantScale(WriteScale):
    """``x' = skip_scale * x + value * branch``."""

    is_scaled = True

    def __init__(self, value: float, skip_scale: float = 1.0) -> None:
        super().__init__(skip_scale)
        self.value = value

    def forward(
        self, stream: Float[Tensor, "*batch d_read"], condition: Tensor | None = None
    ) -> WriteTerms:
        """The constant."""
        del condition
        return WriteTerms(stream.new_full((), self.value))


class ScalarScale(WriteScale):
    """``x' = x + alpha * branch`` with one learned `alpha`."""

    is_scaled = True

    def __init__(self, init: float) -> None:
        super().__init__()
        self.init = init
        self.alpha = nn.Parameter(torch.empty((), dtype=torch.float32))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set alpha to its start."""
        nn.init.constant_(self.alpha, self.init)

    def forward(
        self, stream: Float[Tensor, "*batch d_read"], condition: Tensor | None = None
    ) -> WriteTerms:
        """The learned scalar."""
        del stream, condition
        return WriteTerms(self.alpha)


class ChannelScale(WriteScale):
    """``x' = x + gamma * branch`` with one learned `gamma` per channel."""

    is_scaled = True

    def __init__(self, init: float, d_model: int) -> None:
        super().__init__()
        self.init = init
        self.gamma = nn.Parameter(torch.empty(d_model, dtype=torch.float32))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set gamma to its start."""
        nn.init.constant_(self.gamma, self.init)

    def forward(
        self, stream: Float[Tensor, "*batch d_read"], condition: Tensor | None = None
    ) -> WriteTerms:
        """The learned vector."""
        del stream, condition
        return WriteTerms(self.gamma)


class SkipChannelScale(WriteScale):
    """``x' = omega * x + branch`` with one learned `omega` per channel."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.omega = nn.Parameter(torch.empty(d_model, dtype=torch.float32))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set omega to one."""
        nn.init.ones_(self.omega)

    def skip(self, scale: Tensor | None) -> Tensor:
        """The learned vector."""
        del scale
        return self.omega


class TwoChannelScales(WriteScale):
    """``x' = beta * x + gamma * branch``, both learned per channel."""

    is_scaled = True

    def __init__(self, init: float, skip_init: float, d_model: int) -> None:
        super().__init__()
        self.init, self.skip_init = init, skip_init
        self.gamma = nn.Parameter(torch.empty(d_model, dtype=torch.float32))
        self.beta = nn.Parameter(torch.empty(d_model, dtype=torch.float32))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set both to their start."""
        nn.init.constant_(self.gamma, self.init)
        nn.init.constant_(self.beta, self.skip_init)

    def forward(
        self, stream: Float[Tensor, "*batch d_read"], condition: Tensor | None = None
    ) -> WriteTerms:
        """The learned vector of the branch."""
        del stream, condition
        return WriteTerms(self.gamma)

    def skip(self, scale: Tensor | None) -> Tensor:
        """The learned vector of the skip."""
        del scale
        return self.beta


class GateScale(WriteScale):
    """``x' = (1 - t) * x + t * branch`` with ``t = sigmoid(W x + b)``.

    Args:
        d_model: Width of the stream.
        n_gates: `d_model` for one gate per channel, 1 for one per position.
        bias: Start of b.
    """

    is_scaled = True

    def __init__(self, d_model: int, n_gates: int, bias: float) -> None:
        super().__init__()
        self.bias = bias
        self.gate = nn.Linear(d_model, n_gates, dtype=torch.float32)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw W from ``N(0, 0.02^2)``, set b to its start."""
        nn.init.normal_(self.gate.weight, std=0.02)
        nn.init.constant_(self.gate.bias, self.bias)

    def forward(
        self, stream: Float[Tensor, "*batch d_read"], condition: Tensor | None = None
    ) -> WriteTerms:
        """The gates of every position."""
        del condition
        with _full_precision(stream):
            return WriteTerms(self.gate(stream.to(self.gate.weight.dtype)).sigmoid())

    def skip(self, scale: Tensor | None) -> Tensor:
        """What the gates leave to the stream."""
        assert scale is not None, "a gate is always scaled"
        return 1 - scale


class ModulatedScale(WriteScale):
    """``x' = x + g * F(norm(x) * (1 + s) + b)`` with ``(s, b, g) = W silu(c) + bias``, both 0."""

    is_scaled = True
    changes_read = True

    def __init__(self, d_model: int, d_condition: int) -> None:
        super().__init__()
        self.modulation = nn.Linear(d_condition, 3 * d_model, dtype=torch.float32)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set all to zero: the block starts as the identity."""
        nn.init.zeros_(self.modulation.weight)
        nn.init.zeros_(self.modulation.bias)

    def forward(
        self, stream: Float[Tensor, "*batch d_read"], condition: Tensor | None = None
    ) -> WriteTerms:
        """Gate, gain and shift of the condition; without one, of a condition of zeros.

        Raises:
            ValueError: The condition has another width, or more axes than the stream.
        """
        weight = self.modulation.weight
        if condition is None:
            condition = weight.new_zeros(stream.shape[0], weight.shape[1])
        if condition.shape[-1] != weight.shape[1] or condition.ndim > stream.ndim:
            raise ValueError(
                f"condition must be [batch, {weight.shape[1]}] or [batch, pos, {weight.shape[1]}], "
                f"got {tuple(condition.shape)}"
            )
        while condition.ndim < stream.ndim:
            condition = condition.unsqueeze(1)
        with _full_precision(stream):
            moved = self.modulation(F.silu(condition.to(weight.dtype)))
        gain, shift, gate = moved.chunk(3, dim=-1)
        return WriteTerms(gate, 1 + gain, shift)


class AdapterCarry(WriteScale):
    """``x' = W_up gelu(W_down x) + branch``: a bottleneck where the skip was."""

    def __init__(self, d_model: int, width: int) -> None:
        super().__init__()
        self.down = nn.Linear(d_model, width, dtype=torch.float32)
        self.up = nn.Linear(width, d_model, dtype=torch.float32)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw both matrices by Xavier, biases zero."""
        for matrix in (self.down, self.up):
            nn.init.xavier_normal_(matrix.weight)
            nn.init.zeros_(matrix.bias)

    def carried(self, stream: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """The stream through the bottleneck."""
        dtype = self.down.weight.dtype
        with _full_precision(stream):
            return self.up(F.gelu(self.down(stream.to(dtype)))).to(stream.dtype)


def _full_precision(stream: Tensor) -> torch.autocast:
    """Autocast off: ``1 - t`` of a rounded gate would round the whole stream with it."""
    return torch.autocast(stream.device.type, enabled=False)
