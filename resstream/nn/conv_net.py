"""A small residual convolutional net, after the ones for CIFAR-10 in which degradation was seen."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens import HookedRootModule  # noqa: TID253  models are made of hook points
from transformer_lens.hook_points import HookPoint  # noqa: TID253

from resstream.errors import ConfigError
from resstream.nn.initialisation import Depth
from resstream.nn.matrices import Filter, Matrix, initialise
from resstream.nn.net_config import Activation, NetBlock, NetConfig, TwoMatrices
from resstream.nn.norm_kinds import BATCH_NORM, NetNorm
from resstream.nn.norms import StreamNorm, applied
from resstream.nn.placements import Placement, norms_read
from resstream.nn.plan import WritePlan
from resstream.nn.shortcut import ShortcutKind, shortcut_of
from resstream.nn.variants import check_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvNetConfig(NetConfig):
    """Shape and residual rule of a `ResidualConvNet`; the defaults are He et al.'s (2015).

    Depth in their count of layers is ``6 * blocks_per_stage + 2`` with three stages.

    Raises:
        ConfigError: A value is not allowed; the message has the key, the value and what is allowed.
    """

    blocks_per_stage: int
    """Blocks of one width, each with one write of two convolutions."""
    channels: tuple[int, ...] = (16, 32, 64)
    """Width of the stream in each stage; from the second on, the first block halves the image."""
    n_in: int = 3
    n_out: int = 10
    norm: NetNorm = BATCH_NORM
    activation: Activation = "after_add"
    shortcut: ShortcutKind = "zero_pad"

    def __post_init__(self) -> None:
        for key in ("blocks_per_stage", "n_in", "n_out"):
            check_whole(key, getattr(self, key), at_least=1)
        for width in self.channels:
            check_whole("channels", width, at_least=1)
        if not self.channels:
            raise ConfigError("channels must have at least one stage, got none")
        self._check_shared()
        self._check_widths(tuple(self.channels))

    @property
    def norm_placement(self) -> Placement:
        """As configured; else at the end of the branch, where He et al. (2015) have it.

        Rules that were published without a norm, or with one elsewhere, keep their own place.
        """
        if self.placement is not None:
            return self.placement
        has_own = self.rule.placement != "pre" or "after" not in self.rule.placements
        return self.rule.placement if has_own else "after"

    @property
    def depth(self) -> Depth:
        """Blocks and writes, as many of each."""
        n_layers = self.blocks_per_stage * len(self.channels)
        return Depth(n_layers=n_layers, n_writes=n_layers)

    @property
    def plan(self) -> WritePlan:
        """How the blocks of the first stage write."""
        return WritePlan(
            rule=self.rule,
            placement=self.norm_placement,
            norm=self.norm,
            depth=self.depth,
            d_model=self.channels[0],
            names=("conv",),
        )


class ResidualConvNet(HookedRootModule):
    """Convolution, stages of blocks, mean over the image, matrix.

    The stream is ``[batch, height, width, channels]``, so that rules and norms find the channels
    where a transformer has them.  Sites: ``blocks.L.hook_resid_pre``, ``hook_conv_branch``,
    ``hook_conv_scale``, ``hook_conv_out``, ``hook_resid_post``.

    Args:
        config: Shape and residual rule.
    """

    def __init__(self, config: ConvNetConfig) -> None:
        super().__init__()
        self.config = config
        placement, first, last = config.norm_placement, config.channels[0], config.channels[-1]
        reads_norm = norms_read(placement)
        self.embed = Filter(config.n_in, first, role="input")
        # Where branches read through a norm, the first of these stands in for a norm here.
        has_norm = placement != "none" and not reads_norm
        self.ln_embed = StreamNorm(config.norm, first) if has_norm else None
        self.embed_act = None if reads_norm else config.make_act()
        self.hook_embed = HookPoint()
        self.blocks = nn.ModuleList(_blocks(config))
        self.ln_final = StreamNorm(config.norm if reads_norm else None, last)
        self.final_act = config.make_act() if reads_norm else None
        self.unembed = Matrix(last, config.n_out, role="unembed", bias=True)
        for module in self.modules():
            initialise(module, config)
        self.setup()

    def forward(
        self, images: Float[Tensor, "batch n_in height width"]
    ) -> Float[Tensor, "batch n_out"]:
        """Logits of every image."""
        dtype = self.embed.weight.dtype
        stream = self.embed(images.to(dtype).movedim(1, -1))
        stream = stream.to(torch.promote_types(dtype, torch.float32))
        stream = self.hook_embed(applied(self.embed_act, applied(self.ln_embed, stream)))
        for block in self.blocks:
            stream = block(stream)
        stream = applied(self.final_act, self.ln_final(stream))
        return self.unembed(stream.mean((1, 2)).to(dtype))


def _blocks(config: ConvNetConfig) -> list[NetBlock]:
    blocks: list[NetBlock] = []
    d_read = config.channels[0]
    for stage, width in enumerate(config.channels):
        for index in range(config.blocks_per_stage):
            stride = 2 if stage and not index else 1
            blocks.append(_block(config, len(blocks), (d_read, width), stride))
            d_read = width
    return blocks


def _block(config: ConvNetConfig, layer: int, widths: tuple[int, int], stride: int) -> NetBlock:
    (d_read, d_write), rule = widths, config.rule
    has_norm = config.norm_placement != "none"
    branch = TwoMatrices(
        Filter(d_read, d_write, role="mlp_in", stride=stride),
        Filter(d_write, d_write, role="mlp_out"),
        config.make_act(),
        norms=(StreamNorm(config.norm, d_write) if has_norm else None, None),
        has_biases=rule.has_scalar_biases,
    )
    carries = rule.kind != "none"
    shortcut = shortcut_of(config.shortcut, d_read, d_write, stride=stride, carries=carries)
    plan = replace(config.plan, d_model=d_write)
    return NetBlock(config, plan, layer, branch, shortcut)
