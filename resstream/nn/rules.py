r"""How is a branch written into the stream?  The closed set of residual rules.

A rule is a frozen dataclass of its own parameters.  It answers four questions, each with the plain
rule's answer as default: where the norm stands, what multiplies branch and stream
(`write_scale`), what multiplies what the branch reads (`read_scale`), and by how much the
initialisation of a matrix is scaled (`init_gain`).  With L blocks, x the stream, F a sublayer:

    ===========  ======================================  ====================
    kind         write                                   norm
    ===========  ======================================  ====================
    plain        x + F(norm(x))                          before the branch
    layer_scale  x + gamma * F(norm(x))                  before the branch
    rezero       x + alpha_l F(x)                        none
    rezero_norm  x + alpha_i F(norm(x))                  before the branch
    deepnorm     norm(alpha x + F(x))                    after the addition
    ===========  ======================================  ====================

To add a rule: write its class here, with formula, constants and source, and name it in `RULES`.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from resstream.nn.initialisation import Initialisation, MatrixRole, Normal, Xavier
from resstream.nn.scales import ChannelScale, ScalarScale, WriteScale
from resstream.nn.variants import check_number

Placement = Literal["pre", "post", "sandwich", "after", "none"]
"""Where the norm stands.

* ``pre``: ``x + F(norm(x))`` (Xiong et al. 2020)
* ``post``: ``norm(x + F(x))`` (Vaswani et al. 2017)
* ``sandwich``: ``x + norm(F(norm(x)))`` (CogView, Ding et al. 2021; with a final norm Peri-LN,
  Kim et al. 2025)
* ``after``: ``x + norm(F(x))`` (OLMo 2)
* ``none``: ``x + F(x)``
"""
PLACEMENTS: tuple[Placement, ...] = get_args(Placement)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualRule:
    """What all rules share; the answers here are those of the plain residual connection."""

    kind: ClassVar[str]
    placement: ClassVar[Placement] = "pre"
    """Where the published rule puts the norm."""
    placements: ClassVar[tuple[Placement, ...]] = PLACEMENTS
    """Where the norm may stand without making this another rule."""
    is_shared: ClassVar[bool] = False
    """True if both writes of a block are multiplied by the same scale."""
    initialisation: ClassVar[Initialisation] = Normal()
    """Initialisation of the matrices where the config names none."""

    def write_scale(self, layer: int, n_layers: int, d_model: int) -> WriteScale:
        """The module that scales the write of block `layer`, which counts from 0."""
        del layer, n_layers, d_model
        return WriteScale()

    def read_scale(self, layer: int) -> float:
        """What multiplies the normed stream that a branch of block `layer` reads."""
        del layer
        return 1.0

    def init_gain(self, role: MatrixRole, n_layers: int) -> float:
        """What multiplies the standard deviation of a matrix at initialisation."""
        del role, n_layers
        return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain(ResidualRule):
    """``x' = x + F(norm(x))``.

    References:
        He et al. (2015), "Deep Residual Learning for Image Recognition", equation 1; with the norm
        before the branch, Xiong et al. (2020), "On Layer Normalization in the Transformer
        Architecture".
    """

    kind: ClassVar[str] = "plain"


PLAIN = Plain()
"""The plain rule, which has no parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerScale(ResidualRule):
    """``x' = x + diag(gamma) F(norm(x))``, one learned gamma per channel and write.

    The paper starts gamma at 0.1 up to depth 18, 1e-5 at depth 24 and 1e-6 deeper.

    References:
        Touvron et al. (2021), "Going deeper with Image Transformers" (CaiT), section 2.
    """

    kind: ClassVar[str] = "layer_scale"
    placements: ClassVar[tuple[Placement, ...]] = ("pre", "sandwich", "after", "none")

    init: float = 1e-5
    """Start of every element of gamma."""

    def __post_init__(self) -> None:
        check_number("layer_scale.init", self.init)

    def write_scale(self, layer: int, n_layers: int, d_model: int) -> WriteScale:
        """A vector of `init`."""
        del layer, n_layers
        return ChannelScale(self.init, d_model)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReZero(ResidualRule):
    """``x' = x + alpha_l F(x)``: no norm, one learned alpha per block, shared by its two writes.

    At alpha = 0 every block is the identity, and only alpha has a gradient.

    References:
        Bachlechner et al. (2020), "ReZero is All You Need: Fast Convergence at Large Depth",
        equation 1; one weight for both sublayers as in the authors' transformer.
    """

    kind: ClassVar[str] = "rezero"
    placement: ClassVar[Placement] = "none"
    placements: ClassVar[tuple[Placement, ...]] = ("none",)
    is_shared: ClassVar[bool] = True

    alpha: float = 0.0
    """Start of alpha; the paper's is 0."""

    def __post_init__(self) -> None:
        check_number("rezero.alpha", self.alpha)

    def write_scale(self, layer: int, n_layers: int, d_model: int) -> WriteScale:
        """One scalar for the block."""
        del layer, n_layers, d_model
        return ScalarScale(self.alpha)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReZeroNorm(ResidualRule):
    """``x' = x + alpha_i F(norm(x))``: ReZero with the norm kept and one learned alpha per write.

    This is a common variant, not what the paper proposes; `ReZero` is.

    References:
        After Bachlechner et al. (2020), "ReZero is All You Need", table 1 (compared there).
    """

    kind: ClassVar[str] = "rezero_norm"
    placements: ClassVar[tuple[Placement, ...]] = ("pre", "sandwich", "after")

    alpha: float = 0.0
    """Start of every alpha."""

    def __post_init__(self) -> None:
        check_number("rezero_norm.alpha", self.alpha)

    def write_scale(self, layer: int, n_layers: int, d_model: int) -> WriteScale:
        """One scalar for the write."""
        del layer, n_layers, d_model
        return ScalarScale(self.alpha)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepNorm(ResidualRule):
    """``x' = norm(alpha x + F(x))``: Post-LN with a heavier skip and lighter matrices.

    For M blocks of one stack (encoder-only and decoder-only alike)::

        alpha = (2 M)^(1/4)        multiplies the stream, in training and in inference
        beta  = (8 M)^(-1/4)       Xavier gain of W_V, W_O and the MLP; W_Q and W_K keep gain 1

    Both depend on depth only.  A value given here replaces the one computed.

    References:
        Wang et al. (2022), "DeepNet: Scaling Transformers to 1,000 Layers", figure 2.
    """

    kind: ClassVar[str] = "deepnorm"
    placement: ClassVar[Placement] = "post"
    placements: ClassVar[tuple[Placement, ...]] = ("post",)
    initialisation: ClassVar[Initialisation] = Xavier()

    alpha: float | None = None
    """Weight of the stream; None: (2 M)^(1/4)."""
    beta: float | None = None
    """Gain of the initialisation; None: (8 M)^(-1/4)."""

    def __post_init__(self) -> None:
        for name in ("alpha", "beta"):
            if getattr(self, name) is not None:
                check_number(f"deepnorm.{name}", getattr(self, name), at_least=0.0)

    def skip_scale(self, n_layers: int) -> float:
        """Alpha of a stack of `n_layers` blocks."""
        return (2 * n_layers) ** 0.25 if self.alpha is None else self.alpha

    def write_scale(self, layer: int, n_layers: int, d_model: int) -> WriteScale:
        """The branch as it is, the stream times alpha."""
        del layer, d_model
        return WriteScale(skip_scale=self.skip_scale(n_layers))

    def init_gain(self, role: MatrixRole, n_layers: int) -> float:
        """Beta for what makes the size of the branch."""
        if role not in ("value", "attn_out", "mlp_in", "mlp_out"):
            return 1.0
        return (8 * n_layers) ** -0.25 if self.beta is None else self.beta


RULES: tuple[type[ResidualRule], ...] = (Plain, LayerScale, ReZero, ReZeroNorm, DeepNorm)
"""Every residual rule; a config names one by its `kind`."""
