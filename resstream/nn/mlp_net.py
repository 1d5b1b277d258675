"""A residual MLP: the same rules without attention, to ask what depth does to training."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens import HookedRootModule  # noqa: TID253  models are made of hook points
from transformer_lens.hook_points import HookPoint  # noqa: TID253

from resstream.errors import ConfigError
from resstream.nn.initialisation import Depth
from resstream.nn.matrices import Matrix, initialise
from resstream.nn.net_config import NetBlock, NetConfig, TwoMatrices
from resstream.nn.norms import StreamNorm
from resstream.nn.placements import norms_inside
from resstream.nn.plan import WritePlan
from resstream.nn.shortcut import shortcut_of
from resstream.nn.variants import check_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpNetConfig(NetConfig):
    """Shape and residual rule of a `ResidualMlp`.

    Raises:
        ConfigError: A value is not allowed; the message has the key, the value and what is allowed.
    """

    n_layers: int
    """Blocks, each with one write of two matrices."""
    d_model: int
    """Width of the stream (at first, where `widths` is given)."""
    d_in: int
    d_out: int
    d_hidden: int | None = None
    """Width inside a branch; None: d_model."""
    widths: tuple[int, ...] | None = None
    """Width of the stream behind each block; None: d_model throughout."""

    def __post_init__(self) -> None:
        for key in ("n_layers", "d_model", "d_in", "d_out"):
            check_whole(key, getattr(self, key), at_least=1)
        if self.d_hidden is not None:
            check_whole("d_hidden", self.d_hidden, at_least=1)
        self._check_shared()
        for width in self.stream_widths:
            check_whole("widths", width, at_least=1)
        if len(self.stream_widths) != self.n_layers:
            raise ConfigError(
                f"widths must have one width per block ({self.n_layers}), got {self.widths}"
            )
        self._check_widths((self.d_model, *self.stream_widths))

    @property
    def stream_widths(self) -> tuple[int, ...]:
        """Width of the stream behind each block."""
        return (self.d_model,) * self.n_layers if self.widths is None else tuple(self.widths)

    @property
    def depth(self) -> Depth:
        """Blocks and writes, as many of each."""
        return Depth(n_layers=self.n_layers, n_writes=self.n_layers)

    @property
    def plan(self) -> WritePlan:
        """How the blocks write."""
        return WritePlan(
            rule=self.rule,
            placement=self.norm_placement,
            norm=self.norm,
            depth=self.depth,
            d_model=self.d_model,
            names=("mlp",),
        )


class ResidualMlp(HookedRootModule):
    """Matrix, blocks that write ``W2 act(W1 x)`` into the stream, final norm, matrix.

    The stream is float32 at least.  Sites: ``blocks.L.hook_resid_pre``, ``hook_mlp_branch``,
    ``hook_mlp_scale``, ``hook_mlp_out``, ``hook_resid_post``.

    Args:
        config: Shape and residual rule.
    """

    def __init__(self, config: MlpNetConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = Matrix(config.d_in, config.d_model, role="input", bias=True)
        self.hook_embed = HookPoint()
        before = (config.d_model, *config.stream_widths)
        self.blocks = nn.ModuleList(
            _block(config, layer, before[layer]) for layer in range(config.n_layers)
        )
        has_norm = config.norm_placement not in ("post", "none")
        self.ln_final = StreamNorm(config.norm if has_norm else None, before[-1])
        self.unembed = Matrix(before[-1], config.d_out, role="unembed", bias=True)
        for module in self.modules():
            initialise(module, config)
        self.setup()

    def forward(
        self,
        inputs: Float[Tensor, "*batch d_in"],
        *,
        condition: Float[Tensor, "*batch d_condition"] | None = None,
    ) -> Float[Tensor, "*batch d_out"]:
        """Map every position by itself; `condition` is for AdaLN-Zero."""
        dtype = self.embed.weight.dtype
        stream = self.embed(inputs.to(dtype)).to(torch.promote_types(dtype, torch.float32))
        stream = self.hook_embed(stream)
        for block in self.blocks:
            stream = block(stream, condition=condition)
        return self.unembed(self.ln_final(stream).to(dtype))


def _block(config: MlpNetConfig, layer: int, d_read: int) -> NetBlock:
    rule, d_write = config.rule, config.stream_widths[layer]
    d_hidden = config.d_model if config.d_hidden is None else config.d_hidden
    has_inner = norms_inside(config.norm_placement, "mlp")
    has_bias = not rule.has_scalar_biases
    branch = TwoMatrices(
        Matrix(d_read, d_hidden, role="mlp_in", bias=has_bias),
        Matrix(d_hidden, d_write, role="mlp_out", bias=has_bias),
        config.make_act(),
        norms=(None, StreamNorm(config.norm, d_hidden) if has_inner else None),
        has_biases=rule.has_scalar_biases,
    )
    shortcut = shortcut_of(config.shortcut, d_read, d_write, carries=rule.kind != "none")
    plan = replace(config.plan, d_model=d_write)
    return NetBlock(config, plan, layer, branch, shortcut)
