"""What do the residual nets without attention share?  Their config and their block."""

from dataclasses import dataclass
from typing import Literal, get_args

from jaxtyping import Float
from torch import Tensor, nn

from resstream.errors import ConfigError
from resstream.nn.initialisation import INITIALISATIONS, Initialisation, Kaiming
from resstream.nn.norm_kinds import LAYER_NORM, BatchNorm, LayerNorm, NetNorm, RmsNorm
from resstream.nn.norms import ScalarBias, StreamNorm, applied
from resstream.nn.placements import Placement, check_placement
from resstream.nn.plan import WritePlan
from resstream.nn.rules import PLAIN, ResidualRule, parse_rule
from resstream.nn.shortcut import Shortcut, ShortcutKind
from resstream.nn.variants import check_choice, parse_variant
from resstream.nn.writing import WritingBlock

Act = Literal["relu", "gelu", "tanh"]
Activation = Literal["inside", "pre", "before_add", "after_add"]
"""Where an activation stands beside the one between the two matrices of a branch: nowhere, in front
of the first (He et al. 2016, full pre-activation), at the end of the branch (their figure 4c: the
write is never negative), or behind the addition (He et al. 2015)."""

_ACTS: dict[Act, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}
_NET_NORMS = (RmsNorm, LayerNorm, BatchNorm)
_ONE_WIDTH = ("highway", "gate", "adaln_zero")


@dataclass(frozen=True, slots=True, kw_only=True)
class NetConfig:
    """What both nets have; every block has one write.

    Raises:
        ConfigError: A value is not allowed; the message has the key, the value and what is allowed.
    """

    rule: ResidualRule = PLAIN
    """How branches are written into the stream; a kind, a mapping or a rule."""
    placement: Placement | None = None
    """Where the norm stands; None: where the rule was published with it."""
    norm: NetNorm = LAYER_NORM
    act: Act = "relu"
    activation: Activation = "inside"
    shortcut: ShortcutKind = "projection"
    """What the skip is where widths differ."""
    init: Initialisation | None = None
    """How matrices are drawn; None: Kaiming.  The rule's gains come on top."""

    def _check_shared(self) -> None:
        object.__setattr__(self, "rule", parse_rule(self.rule))
        object.__setattr__(self, "norm", parse_variant("norm", self.norm, _NET_NORMS))
        if self.init is not None:
            object.__setattr__(self, "init", parse_variant("init", self.init, INITIALISATIONS))
        check_choice("act", self.act, get_args(Act))
        check_choice("activation", self.activation, get_args(Activation))
        check_choice("shortcut", self.shortcut, get_args(ShortcutKind))
        if self.placement is not None:
            check_placement(self.placement, self.rule.placements, self.rule.kind)
        if self.rule.score_weight is not None:
            raise ConfigError(f"rule must be one without attention, got {self.rule.kind!r}")

    def _check_widths(self, widths: tuple[int, ...]) -> None:
        if self.rule.kind in _ONE_WIDTH and len(set(widths)) > 1:
            raise ConfigError(
                f"widths must be equal for the rule {self.rule.kind!r}, whose gates are as wide as "
                f"the stream, got {widths}"
            )

    @property
    def norm_placement(self) -> Placement:
        """Where the norm stands: as configured, or as the rule was published."""
        return self.rule.placement if self.placement is None else self.placement

    @property
    def initialisation(self) -> Initialisation:
        """How matrices are drawn."""
        return Kaiming() if self.init is None else self.init

    def make_act(self) -> nn.Module:
        """The activation."""
        return _ACTS[self.act]()


class TwoMatrices(nn.Module):
    """``second(act(first(x)))``, the branch of a net, with the norms and biases asked for.

    Args:
        first: Matrix or filter that reads.
        second: Matrix or filter that writes.
        act: The activation between.
        norms: The norms before and after the activation, where there are any.
        has_biases: True: Fixup's scalar biases around both.
    """

    def __init__(
        self,
        first: nn.Module,
        second: nn.Module,
        act: nn.Module,
        *,
        norms: tuple[StreamNorm | None, StreamNorm | None] = (None, None),
        has_biases: bool = False,
    ) -> None:
        super().__init__()
        self.first, self.second, self.act = first, second, act
        self.ln_first, self.ln_inner = norms
        self.bias_in, self.bias_act, self.bias_inner, self.bias_out = (
            ScalarBias() if has_biases else None for _ in range(4)
        )

    def forward(self, read: Float[Tensor, "*batch d_read"]) -> Tensor:
        """The branch, before anything scales it; computed in the dtype of the matrices."""
        weight = self.first.get_parameter("weight")
        pre = self.first(applied(self.bias_in, read.to(weight.dtype)))
        post = self.act(applied(self.bias_act, applied(self.ln_first, pre)))
        inner = applied(self.bias_inner, applied(self.ln_inner, post))
        return applied(self.bias_out, self.second(inner))


class NetBlock(WritingBlock):
    """One branch of two matrices, written into the stream through a shortcut where widths differ.

    Args:
        config: The net's.
        plan: How this block writes; `plan.d_model` is the width behind it.
        layer: Which block this is.
        branch: The sublayer.
        shortcut: What the skip is; None: the stream itself.
    """

    def __init__(
        self,
        config: NetConfig,
        plan: WritePlan,
        layer: int,
        branch: TwoMatrices,
        shortcut: Shortcut | None,
    ) -> None:
        super().__init__(plan, layer, d_read=None if shortcut is None else shortcut.d_in)
        (self.writer,) = plan.names
        self.shortcut = shortcut
        self.add_module(self.writer, branch)
        is_at = config.activation
        self.read_act = config.make_act() if is_at == "pre" else None
        self.branch_act = config.make_act() if is_at == "before_add" else None
        self.stream_act = config.make_act() if is_at == "after_add" else None

    def forward(
        self, stream: Float[Tensor, "*batch d_read"], *, condition: Tensor | None = None
    ) -> Tensor:
        """The stream behind the block."""
        stream = self.hook_resid_pre(stream)
        read, terms = self.read(self.writer, stream, condition)
        branch = self.get_submodule(self.writer)(applied(self.read_act, read))
        stream = self.write(self.writer, applied(self.shortcut, stream), branch, terms)
        return self.hook_resid_post(applied(self.stream_act, stream))
