"""Who else can do a residual add and a norm on a GPU, and how is each called?

A peer that is not installed, or that can't express a write, is reported with the reason.  All of
them take the plain write ``stream + branch`` with RMSNorm; none has LayerScale with a gain, or
statistics, in the same pass.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Run = Callable[[], tuple[Tensor, Tensor]]
"""Returns the normed and the new stream."""


def liger(operands: dict[str, Any]) -> Run:
    """Liger-Kernel's fused add and RMSNorm; keeps the stream in the branch's dtype."""
    from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction

    stream, branch, weight = (operands[name] for name in ("stream", "branch", "weight"))
    if stream.dtype != branch.dtype:
        raise NotImplementedError("the stream is kept in the branch's dtype")
    weight = weight.to(branch.dtype)
    apply = LigerFusedAddRMSNormFunction.apply
    return lambda: apply(branch, stream, weight, 1e-6, 0.0, "llama", False)


def flash_attention(operands: dict[str, Any]) -> Run:
    """flash-attention's Triton layer_norm with a residual."""
    from flash_attn.ops.triton.layer_norm import rms_norm_fn

    stream, branch, weight = (operands[name] for name in ("stream", "branch", "weight"))
    options = {"eps": 1e-6, "prenorm": True, "residual_in_fp32": stream.dtype == torch.float32}
    return lambda: rms_norm_fn(branch, weight, None, residual=stream, **options)


def quack(operands: dict[str, Any]) -> Run:
    """The RMSNorm of quack-kernels with a residual."""
    from quack import rmsnorm

    stream, branch, weight = (operands[name] for name in ("stream", "branch", "weight"))
    return lambda: rmsnorm(branch, weight, residual=stream, eps=1e-6, prenorm=True)


PEERS: dict[str, Callable[[dict[str, Any]], Run]] = {
    "liger": liger,
    "flash-attention": flash_attention,
    "quack": quack,
}
"""Name -> builder of what is timed."""
