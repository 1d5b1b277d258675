"""What does one block do to the stream?  Read, branch, scale and write, twice, each step hooked."""

from typing import Literal

from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint  # noqa: TID253  models are made of hook points

from resstream.nn.attention import Attention, KeyValueCache, Turns
from resstream.nn.config import TransformerConfig
from resstream.nn.mlp import Mlp
from resstream.nn.norms import StreamNorm
from resstream.nn.scales import WriteScale
from resstream.nn.write import residual_write, scaled_write

SublayerName = Literal["attn", "mlp"]


class Block(nn.Module):
    """Attention's write, then the MLP's.

    Each is, with the parts that the config asks for::

    read   = read_scale * norm(x)          ln1, ln2        (pre, sandwich)
    branch = sublayer(read)                hook_attn_branch, hook_mlp_branch
    branch = norm(branch)                  ln1_post, ln2_post  (sandwich, after)
    write  = scale * branch                hook_attn_scale; hook_attn_out is the write
    x      = skip_scale * x + write
    x      = norm(x)                       ln1, ln2        (post)
    """

    def __init__(self, config: TransformerConfig, layer: int) -> None:
        super().__init__()
        placement, d_model = config.norm_placement, config.d_model
        self.norms_read = placement in ("pre", "sandwich")
        self.norms_stream = placement == "post"
        self.read_scale = config.rule.read_scale(layer)
        norms_branch = placement in ("sandwich", "after")

        def norm(is_there: bool) -> StreamNorm | None:
            return StreamNorm(config.norm, d_model) if is_there else None

        self.ln1, self.ln2 = (norm(self.norms_read or self.norms_stream) for _ in range(2))
        self.ln1_post, self.ln2_post = (norm(norms_branch) for _ in range(2))
        self.attn, self.mlp = Attention(config, layer), Mlp(config)
        self.dropout = nn.Dropout(config.dropout)
        self._make_scales(config, layer)
        self._make_hooks()

    def _make_scales(self, config: TransformerConfig, layer: int) -> None:
        def make() -> WriteScale:
            return config.rule.write_scale(layer, config.n_layers, config.d_model)

        # A shared scale is registered once: a checkpoint must not hold one tensor under two names.
        names = ("block",) if config.rule.is_shared else ("attn", "mlp")
        self.scales = nn.ModuleDict({name: make() for name in names})

    def _make_hooks(self) -> None:
        self.hook_resid_pre, self.hook_resid_mid = HookPoint(), HookPoint()
        self.hook_resid_post = HookPoint()
        for name in ("attn", "mlp"):
            parts = ("branch", "scale", "out") if self._scale(name).is_scaled else ("branch", "out")
            for part in parts:
                self.add_module(f"hook_{name}_{part}", HookPoint())

    def _scale(self, name: SublayerName) -> WriteScale:
        scale = self.scales["block" if "block" in self.scales else name]
        assert isinstance(scale, WriteScale)
        return scale

    def forward(
        self,
        stream: Float[Tensor, "batch pos d_model"],
        *,
        attention_mask: Bool[Tensor, "batch 1 pos key"] | None = None,
        position_embeddings: Turns | None = None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "batch pos d_model"]:
        """The stream after both writes."""
        stream = self.hook_resid_pre(stream)
        branch = self.attn(
            self._read(self.ln1, stream),
            attention_mask=attention_mask,
            position_embeddings=position_embeddings,
            cache=cache,
        )
        stream = self.hook_resid_mid(self._write("attn", stream, branch))
        branch = self.mlp(self._read(self.ln2, stream))
        return self.hook_resid_post(self._write("mlp", stream, branch))

    def _read(self, norm: StreamNorm | None, stream: Tensor) -> Tensor:
        read = norm(stream) if norm is not None and self.norms_read else stream
        read = read if self.read_scale == 1.0 else self.read_scale * read
        return read.to(self.attn.o_proj.weight.dtype)

    def _write(self, name: SublayerName, stream: Tensor, branch: Tensor) -> Tensor:
        """Make the write of one sublayer and add it."""
        norm, branch_norm = (
            (self.ln1, self.ln1_post) if name == "attn" else (self.ln2, self.ln2_post)
        )
        branch = self.dropout(self._hook(name, "branch")(branch))
        branch = branch if branch_norm is None else branch_norm(branch.to(stream.dtype))
        scale_module = self._scale(name)
        scale = scale_module(stream) if scale_module.is_scaled else None
        scale = scale if scale is None else self._hook(name, "scale")(scale)
        write = self._hook(name, "out")(scaled_write(branch, scale, stream))
        stream = residual_write(stream, write, skip_scale=scale_module.skip(scale))
        return norm(stream) if norm is not None and self.norms_stream else stream

    def _hook(self, name: SublayerName, part: Literal["branch", "scale", "out"]) -> nn.Module:
        return self.get_submodule(f"hook_{name}_{part}")
