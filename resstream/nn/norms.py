"""How is the stream normed?  LayerNorm, RMSNorm and BatchNorm, in the dtype of what they get."""

from typing import Any, assert_never

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint  # noqa: TID253  models are made of hook points

from resstream.nn.fusion import Ahead, Reader
from resstream.nn.norm_kinds import BatchNorm, LayerNorm, NetNorm, RmsNorm


class StreamNorm(nn.Module):
    """The norm of a config over the last axis, or with None the identity.

    `hook_normalized` sees the result as it is read, gain included.

    Args:
        norm: Which, or None.
        d_model: Width of the last axis.
        has_gain: False: no learned gain and bias.
    """

    def __init__(self, norm: NetNorm | None, d_model: int, *, has_gain: bool = True) -> None:
        super().__init__()
        self.norm = norm
        has_gain = has_gain and norm is not None
        has_bias = has_gain and not isinstance(norm, RmsNorm)
        self.weight = nn.Parameter(Tensor(d_model)) if has_gain else None
        self.bias = nn.Parameter(Tensor(d_model)) if has_bias else None
        if isinstance(norm, BatchNorm):
            self.register_buffer("running_mean", torch.zeros(d_model))
            self.register_buffer("running_var", torch.ones(d_model))
        self.hook_normalized = HookPoint()
        self._ahead: Ahead | None = None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Gain one, bias zero."""
        if self.weight is not None:
            nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, stream: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Norm every position by itself (BatchNorm: every channel)."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.belongs_to(stream, self.weight):
            return self.hook_normalized(ahead.normed)
        return self.hook_normalized(self._normed(stream))

    def hand_ahead(self, stream: Tensor, normed: Tensor) -> None:
        """Take the answer for `stream`, should it be asked for next, from a fused write."""
        self._ahead = Ahead.of(stream, self.weight, normed)

    def as_reader(self, dtype: torch.dtype) -> Reader | None:
        """This norm as a fused write computes it, in `dtype`; None for those that it can't."""
        match self.norm:
            case RmsNorm(eps=eps):
                return Reader("rms", self.weight, None, eps, dtype)
            case LayerNorm(eps=eps):
                return Reader("layer", self.weight, self.bias, eps, dtype)
            case _:
                return None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_ahead": None}  # a tensor of some past run is no state

    def _normed(self, stream: Tensor) -> Tensor:
        weight = None if self.weight is None else self.weight.to(stream.dtype)
        bias = None if self.bias is None else self.bias.to(stream.dtype)
        match self.norm:
            case None:
                return stream
            case RmsNorm(eps=eps):
                return F.rms_norm(stream, stream.shape[-1:], weight, eps)
            case LayerNorm(eps=eps):
                return F.layer_norm(stream, stream.shape[-1:], weight, bias, eps)
            case BatchNorm(eps=eps, momentum=momentum):
                flat = F.batch_norm(
                    stream.flatten(0, -2),
                    self.get_buffer("running_mean"),
                    self.get_buffer("running_var"),
                    weight,
                    bias,
                    training=self.training,
                    momentum=momentum,
                    eps=eps,
                )
                return flat.view(stream.shape)
            case _:
                assert_never(self.norm)


class ScalarBias(nn.Module):
    """``x + b`` with one learned b, 0 at first (Fixup)."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(()))

    def reset_parameters(self) -> None:
        """Set b to zero."""
        nn.init.zeros_(self.bias)

    def forward(self, values: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """Add b."""
        return values + self.bias.to(values.dtype)


class HeadScale(nn.Module):
    """``gain_h * z_h``: one learned gain per head, 1 at first (NormFormer)."""

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(n_heads))

    def reset_parameters(self) -> None:
        """Set the gains to one."""
        nn.init.ones_(self.gain)

    def forward(
        self, heads: Float[Tensor, "batch pos n_heads d_head"]
    ) -> Float[Tensor, "batch pos n_heads d_head"]:
        """Scale every head."""
        return heads * self.gain.to(heads.dtype)[:, None]


def applied(module: nn.Module | None, values: Tensor) -> Tensor:
    """What a part that may be absent makes of `values`."""
    return values if module is None else module(values)
