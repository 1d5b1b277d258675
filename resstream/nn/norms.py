"""How is the stream normed?  LayerNorm and RMSNorm, computed in the dtype of the stream."""

from typing import assert_never

import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint  # noqa: TID253  models are made of hook points

from resstream.nn.config import LayerNorm, Norm, RmsNorm


class StreamNorm(nn.Module):
    """The norm of a config over the last axis, or with None the identity.

    `hook_normalized` sees the result as it is read, gain included.
    """

    def __init__(self, norm: Norm | None, d_model: int) -> None:
        super().__init__()
        self.norm = norm
        has_bias = isinstance(norm, LayerNorm)
        self.weight = None if norm is None else nn.Parameter(Tensor(d_model))
        self.bias = nn.Parameter(Tensor(d_model)) if has_bias else None
        self.hook_normalized = HookPoint()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Gain one, bias zero."""
        if self.weight is not None:
            nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(
        self, stream: Float[Tensor, "batch pos d_model"]
    ) -> Float[Tensor, "batch pos d_model"]:
        """Norm every position by itself."""
        return self.hook_normalized(self._normed(stream))

    def _normed(self, stream: Tensor) -> Tensor:
        if self.norm is None or self.weight is None:
            return stream
        weight, shape = self.weight.to(stream.dtype), stream.shape[-1:]
        match self.norm:
            case RmsNorm(eps=eps):
                return F.rms_norm(stream, shape, weight, eps)
            case LayerNorm(eps=eps):
                bias = None if self.bias is None else self.bias.to(stream.dtype)
                return F.layer_norm(stream, shape, weight, bias, eps)
            case _:
                assert_never(self.norm)
