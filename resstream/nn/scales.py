"""What multiplies a branch, and what multiplies the stream, when a write is made?

A `WriteScale` belongs to one write (ReZero: to both writes of a block).  It is always float32:
a gate that trains by steps of 1e-3 of its own size would stand still in bfloat16.
"""

from collections.abc import Callable
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor, nn


class WriteScale(nn.Module):
    """The write of the plain rule: ``x' = skip_scale * x + branch``; base of all others."""

    is_scaled = False
    """True if something multiplies the branch; only then is there a scale hook."""

    def __init__(self, skip_scale: float = 1.0) -> None:
        super().__init__()
        self.skip_scale = skip_scale

    def forward(self, stream: Float[Tensor, "batch pos d_model"]) -> Tensor:
        """What multiplies the branch; broadcasts against the stream that is written to."""
        return stream.new_ones(())

    def skip(self, scale: Tensor | None) -> float | Tensor:
        """What multiplies the stream, given the scale of the branch."""
        del scale
        return self.skip_scale

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

    def forward(self, stream: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, ""]:
        """The constant."""
        return stream.new_full((), self.value)


class ScalarScale(WriteScale):
    """``x' = skip_scale * x + alpha * branch`` with one learned `alpha`."""

    is_scaled = True

    def __init__(self, init: float, skip_scale: float = 1.0) -> None:
        super().__init__(skip_scale)
        self.init = init
        self.alpha = nn.Parameter(torch.empty((), dtype=torch.float32))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set alpha to its start."""
        nn.init.constant_(self.alpha, self.init)

    def forward(self, stream: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, ""]:
        """The learned scalar."""
        del stream
        return self.alpha


class ChannelScale(WriteScale):
    """``x' = skip_scale * x + gamma * branch`` with one learned `gamma` per channel."""

    is_scaled = True

    def __init__(self, init: float, d_model: int, skip_scale: float = 1.0) -> None:
        super().__init__(skip_scale)
        self.init = init
        self.gamma = nn.Parameter(torch.empty(d_model, dtype=torch.float32))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set gamma to its start."""
        nn.init.constant_(self.gamma, self.init)

    def forward(self, stream: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, " d_model"]:
        """The learned vector."""
        del stream
        return self.gamma
