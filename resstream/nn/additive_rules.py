"""Which rules leave the skip alone?  ``x' = x + scale * F(...)``, and how each starts.

L counts blocks, n the writes of all blocks, x is the stream, F a sublayer.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from resstream.nn.constants import layer_scale_start, sub_ln_gain
from resstream.nn.initialisation import (
    Depth,
    Initialisation,
    Kaiming,
    MatrixRole,
    Xavier,
    branch_gain,
    fixup_role_gain,
    tfixup_role_gain,
)
from resstream.nn.placements import Placement
from resstream.nn.rule import ADDING, Part, ResidualRule, WritePlace
from resstream.nn.scales import (
    ChannelScale,
    ConstantScale,
    ModulatedScale,
    ScalarScale,
    WriteScale,
)
from resstream.nn.variants import check_choice, check_number, check_whole


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
    placements: ClassVar[tuple[Placement, ...]] = (*ADDING, "none")

    init: float | None = 1e-5
    """Start of every element of gamma; None: the paper's for the depth."""

    def __post_init__(self) -> None:
        if self.init is not None:
            check_number("layer_scale.init", self.init)

    def write_scale(self, place: WritePlace) -> WriteScale:
        """A vector of `init`."""
        start = layer_scale_start(place.depth.n_layers) if self.init is None else self.init
        return ChannelScale(start, place.d_model)


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

    def write_scale(self, place: WritePlace) -> WriteScale:
        """One scalar for the block."""
        del place
        return ScalarScale(self.alpha)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReZeroNorm(ResidualRule):
    """``x' = x + alpha_i F(norm(x))``: ReZero with the norm kept and one learned alpha per write.

    This is a common variant, not what the paper proposes; `ReZero` is.

    References:
        After Bachlechner et al. (2020), "ReZero is All You Need", table 1 (compared there).
    """

    kind: ClassVar[str] = "rezero_norm"
    placements: ClassVar[tuple[Placement, ...]] = ADDING

    alpha: float = 0.0
    """Start of every alpha."""

    def __post_init__(self) -> None:
        check_number("rezero_norm.alpha", self.alpha)

    def write_scale(self, place: WritePlace) -> WriteScale:
        """One scalar for the write."""
        del place
        return ScalarScale(self.alpha)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipInit(ResidualRule):
    """``x' = x + alpha_i F(x)``: no norm, one learned alpha per write, at the end of the branch.

    The paper starts alpha at 0, and allows up to ``1 / sqrt(n)``.

    References:
        De and Smith (2020), "Batch Normalization Biases Residual Blocks Towards the Identity
        Function in Deep Networks", section 4.
    """

    kind: ClassVar[str] = "skipinit"
    placement: ClassVar[Placement] = "none"
    placements: ClassVar[tuple[Placement, ...]] = ("none",)

    alpha: float | None = 0.0
    """Start of every alpha; None: 1 / sqrt(n)."""

    def __post_init__(self) -> None:
        if self.alpha is not None:
            check_number("skipinit.alpha", self.alpha)

    def write_scale(self, place: WritePlace) -> WriteScale:
        """One scalar for the write."""
        return ScalarScale(
            1 / math.sqrt(place.depth.n_writes) if self.alpha is None else self.alpha
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixup(ResidualRule):
    """``x' = x + s_i F(x)``: no norm; a scalar multiplier and scalar biases in every branch.

    The last matrix of each branch and the classifier start at 0, the branch's other matrices are
    He-normal times ``n^(-1/(2m-2))`` with m = 2 matrices per branch: value and output (query and
    key make only the pattern), up and down (SwiGLU's gate is drawn like up).  The multiplier starts
    at 1; a scalar bias, 0 at first, stands before and after each matrix.  Biases and multipliers
    learn at a tenth of the rate, as in the authors' code.  A tied classifier can't be 0 and stays
    the embedding.

    References:
        Zhang et al. (2019), "Fixup Initialization: Residual Learning Without Normalization".
    """

    kind: ClassVar[str] = "fixup"
    placement: ClassVar[Placement] = "none"
    placements: ClassVar[tuple[Placement, ...]] = ("none",)
    has_scalar_biases: ClassVar[bool] = True
    initialisation: ClassVar[Initialisation] = Kaiming()

    def write_scale(self, place: WritePlace) -> WriteScale:
        """The multiplier."""
        del place
        return ScalarScale(1.0)

    def init_gain(self, role: MatrixRole, depth: Depth) -> float:
        """0 for outputs and classifier, ``n^(-1/2)`` for the rest of the branch."""
        return fixup_role_gain(role, depth.n_writes)

    def rate_gain(self, part: Part, depth: Depth) -> float:
        """A tenth for biases and multipliers."""
        del depth
        return 0.1 if part in ("bias", "scale") else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TFixup(ResidualRule):
    """``x' = x + F(x)``: no norm and no warm-up, because the matrices start small enough.

    Xavier; embeddings ``N(0, 1/d)`` times ``(9 N)^(-1/4)``; value, output and MLP matrices times
    ``0.67 N^(-1/4)`` in an encoder and ``(9 N)^(-1/4)`` in a decoder with cross-attention.  The
    paper has no constant for a decoder alone; its sublayers are those of the encoder.

    References:
        Huang et al. (2020), "Improving Transformer Optimization Through Better Initialization".
    """

    kind: ClassVar[str] = "tfixup"
    placement: ClassVar[Placement] = "none"
    placements: ClassVar[tuple[Placement, ...]] = ("none",)
    initialisation: ClassVar[Initialisation] = Xavier()

    stack: Literal["encoder", "decoder"] = "encoder"
    """Whose constants to take."""

    def __post_init__(self) -> None:
        check_choice("tfixup.stack", self.stack, ("encoder", "decoder"))

    def init_gain(self, role: MatrixRole, depth: Depth) -> float:
        """The paper's factor of one matrix."""
        return tfixup_role_gain(role, self.stack, depth.n_layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNormScaling(ResidualRule):
    """``x' = x + F(norm(x) / sqrt(l))``, l the block counted from 1.

    Keeps the variance of a Pre-LN stream from growing with depth.  Not to be combined with a
    depth-scaled initialisation, say the authors.

    References:
        Sun et al. (2025), "The Curse of Depth in Large Language Models", equation 6.
    """

    kind: ClassVar[str] = "layer_norm_scaling"
    placements: ClassVar[tuple[Placement, ...]] = ("pre", "sandwich", "sub", "normformer")

    def write_scale(self, place: WritePlace) -> WriteScale:
        """The branch as it is, its read over sqrt(l)."""
        return WriteScale(read_gain=1 / math.sqrt(place.layer + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthMuP(ResidualRule):
    """``x' = x + a / sqrt(L) F(norm(x))``, and Adam's rate in the blocks times ``1 / sqrt(L)``.

    References:
        Yang et al. (2023), "Tensor Programs VI: Feature Learning in Infinite-Depth Neural
        Networks".
    """

    kind: ClassVar[str] = "depth_mup"
    placements: ClassVar[tuple[Placement, ...]] = (*ADDING, "none")

    a: float = 1.0
    """Multiplier that does not depend on depth."""

    def __post_init__(self) -> None:
        check_number("depth_mup.a", self.a)

    def write_scale(self, place: WritePlace) -> WriteScale:
        """The constant of the depth."""
        return ConstantScale(self.a / math.sqrt(place.depth.n_layers))

    def rate_gain(self, part: Part, depth: Depth) -> float:
        """``1 / sqrt(L)`` in the blocks."""
        return 1.0 if part == "embed" else 1 / math.sqrt(depth.n_layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteP(ResidualRule):
    """``x' = x + m^(-alpha) F(norm(x))`` with ``m = L / base_depth``.

    Adam's rate in the blocks goes with ``m^(alpha - 1)``, so that with alpha = 1, the paper's
    choice, learning rates transfer over depth unchanged.

    References:
        Dey et al. (2025), "Don't be lazy: CompleteP enables compute-efficient deep transformers",
        table 1 (its part on depth).
    """

    kind: ClassVar[str] = "completep"
    placements: ClassVar[tuple[Placement, ...]] = (*ADDING, "none")

    alpha: float = 1.0
    """Exponent of the depth, between 0.5 and 1."""
    base_depth: int = 1
    """Depth at which the learning rate was found; 1: plain ``L^(-alpha)``."""

    def __post_init__(self) -> None:
        check_number("completep.alpha", self.alpha, at_least=0.5, at_most=1.0)
        check_whole("completep.base_depth", self.base_depth, at_least=1)

    def _m(self, depth: Depth) -> float:
        return depth.n_layers / self.base_depth

    def write_scale(self, place: WritePlace) -> WriteScale:
        """The constant of the depth."""
        return ConstantScale(self._m(place.depth) ** -self.alpha)

    def rate_gain(self, part: Part, depth: Depth) -> float:
        """``m^(alpha - 1)`` in the blocks."""
        return 1.0 if part == "embed" else self._m(depth) ** (self.alpha - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubLN(ResidualRule):
    """``x' = x + W norm(inner(norm(x)))``: a norm before the block's input and output matrices.

    Value, output and MLP matrices start Xavier times ``sqrt(ln 2L)``.

    References:
        Wang et al. (2022), "Foundation Transformers" (Magneto), figure 2.
    """

    kind: ClassVar[str] = "sub_ln"
    placement: ClassVar[Placement] = "sub"
    placements: ClassVar[tuple[Placement, ...]] = ("sub",)
    initialisation: ClassVar[Initialisation] = Xavier()

    def init_gain(self, role: MatrixRole, depth: Depth) -> float:
        """Magneto's gamma for what makes the size of the branch."""
        return branch_gain(role, sub_ln_gain("decoder_only", n_decoder=depth.n_layers))


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaLNZero(ResidualRule):
    """``x' = x + g F(norm(x) (1 + s) + b)``, and ``(s, b, g) = W silu(c) + bias`` of a condition c.

    W and its bias start at 0, so every block starts as the identity.  The norms of the blocks have
    no gain of their own.  Without a condition c is zeros.

    References:
        Peebles and Xie (2022), "Scalable Diffusion Models with Transformers" (DiT), section 3.2.
    """

    kind: ClassVar[str] = "adaln_zero"
    placements: ClassVar[tuple[Placement, ...]] = ("pre",)
    has_norm_gain: ClassVar[bool] = False

    d_condition: int | None = None
    """Width of the condition; None: that of the stream."""

    def __post_init__(self) -> None:
        if self.d_condition is not None:
            check_whole("adaln_zero.d_condition", self.d_condition, at_least=1)

    def write_scale(self, place: WritePlace) -> WriteScale:
        """Gate, gain and shift of the condition."""
        width = place.d_model if self.d_condition is None else self.d_condition
        return ModulatedScale(place.d_model, width)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualAttention(ResidualRule):
    """Attention ``softmax(S) V`` with ``S_l = Q K^T / sqrt(d_head) + weight * S_{l-1}``.

    S are the scores before the softmax and before the causal mask.  They flow over depth beside the
    stream, so that a block's output does not depend on the stream alone: the model trains and runs
    with hooks, and `resstream.load` refuses it.

    References:
        He et al. (2020), "RealFormer: Transformer Likes Residual Attention", section 3 (Post-LN,
        weight 1).
    """

    kind: ClassVar[str] = "residual_attention"
    placement: ClassVar[Placement] = "post"

    weight: float = 1.0
    """Weight of the previous block's scores (lambda)."""

    def __post_init__(self) -> None:
        check_number("residual_attention.weight", self.weight)

    @property
    def score_weight(self) -> float | None:
        """Weight of the previous block's scores."""
        return self.weight
