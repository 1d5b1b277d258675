"""What does a position do with what it read?  The MLP of a block, plain or gated."""

from typing import assert_never

import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint  # noqa: TID253  models are made of hook points

from resstream.nn.config import MlpKind, TransformerConfig
from resstream.nn.matrices import Matrix
from resstream.nn.norms import ScalarBias, StreamNorm, applied
from resstream.nn.placements import norms_inside


class Mlp(nn.Module):
    """``W_down act(W_up x)``, or for SwiGLU ``W_down (silu(W_gate x) * W_up x)``.

    With Sub-LN and NormFormer `ln_inner` norms what W_down reads; Fixup has scalar biases.

    References:
        Hendrycks and Gimpel (2016), "Gaussian Error Linear Units"; Shazeer (2020), "GLU Variants
        Improve Transformer".
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.act: MlpKind = config.mlp
        d_model, d_mlp, bias = config.d_model, config.mlp_width, config.bias
        self.up_proj = Matrix(d_model, d_mlp, role="mlp_in", bias=bias)
        is_gated = config.mlp == "swiglu"
        self.gate_proj = Matrix(d_model, d_mlp, role="mlp_in", bias=bias) if is_gated else None
        self.down_proj = Matrix(d_mlp, d_model, role="mlp_out", bias=bias)
        self.hook_pre, self.hook_post = HookPoint(), HookPoint()
        has_inner = norms_inside(config.norm_placement, "mlp")
        self.ln_inner = StreamNorm(config.norm, d_mlp) if has_inner else None
        self.bias_in, self.bias_act, self.bias_inner, self.bias_out = (
            ScalarBias() if config.rule.has_scalar_biases else None for _ in range(4)
        )

    def forward(
        self, read: Float[Tensor, "batch pos d_model"]
    ) -> Float[Tensor, "batch pos d_model"]:
        """Map every position by itself."""
        read = applied(self.bias_in, read)
        first = self.up_proj if self.gate_proj is None else self.gate_proj
        pre = self.hook_pre(applied(self.bias_act, first(read)))
        match self.act:
            case "gelu":
                post = F.gelu(pre)
            case "gelu_tanh":
                post = F.gelu(pre, approximate="tanh")
            case "swiglu":
                post = F.silu(pre) * self.up_proj(read)
            case _:
                assert_never(self.act)
        inner = applied(self.bias_inner, applied(self.ln_inner, self.hook_post(post)))
        return applied(self.bias_out, self.down_proj(inner))
