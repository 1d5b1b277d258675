"""Which rules change the skip?  ``x' = skip * x + scale * F(...)``: there the stream is no sum.

L counts blocks, x is the stream, F a sublayer.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from resstream.errors import ConfigError
from resstream.nn.constants import deepnorm_constants
from resstream.nn.initialisation import Depth, Initialisation, MatrixRole, Xavier, branch_gain
from resstream.nn.placements import Placement
from resstream.nn.rule import ADDING, ResidualRule, WritePlace
from resstream.nn.scales import (
    AdapterCarry,
    ConstantScale,
    GateScale,
    SkipChannelScale,
    TwoChannelScales,
    WriteScale,
)
from resstream.nn.variants import check_choice, check_number, check_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class NoSkip(ResidualRule):
    """``x' = F(norm(x))``: no residual connection, the plain net of the degradation experiment.

    References:
        He et al. (2015), "Deep Residual Learning for Image Recognition", figure 1.
    """

    kind: ClassVar[str] = "none"
    is_additive: ClassVar[bool] = False

    def write_scale(self, place: WritePlace) -> WriteScale:
        """The branch alone."""
        del place
        return WriteScale(skip_scale=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepNorm(ResidualRule):
    """``x' = norm(alpha x + F(x))``: Post-LN with a heavier skip and lighter matrices.

    For M blocks of one stack (encoder-only and decoder-only alike)::

        alpha = (2 M)^(1/4)        multiplies the stream, in training and in inference
        beta  = (8 M)^(-1/4)       Xavier gain of W_V, W_O and the MLP; W_Q and W_K keep gain 1

    Both depend on depth only.  Values given here replace the ones computed, both or neither; those
    of an encoder-decoder model come from `resstream.nn.constants.deepnorm_constants`.

    The form ``branch`` is ``norm(x + F(x) / alpha)`` with ``eps / alpha^2`` in the norm, the same
    function exactly: a norm does not see a common factor of its input but for its epsilon.

    References:
        Wang et al. (2022), "DeepNet: Scaling Transformers to 1,000 Layers", figure 2.
    """

    kind: ClassVar[str] = "deepnorm"
    placement: ClassVar[Placement] = "post"
    placements: ClassVar[tuple[Placement, ...]] = ("post",)
    is_additive: ClassVar[bool] = False
    initialisation: ClassVar[Initialisation] = Xavier()

    alpha: float | None = None
    """Weight of the stream; None: (2 M)^(1/4)."""
    beta: float | None = None
    """Gain of the initialisation; None: (8 M)^(-1/4)."""
    form: Literal["skip", "branch"] = "skip"
    """Where alpha stands: on the skip, or its inverse on the branch."""

    def __post_init__(self) -> None:
        check_choice("deepnorm.form", self.form, ("skip", "branch"))
        given = {"alpha": self.alpha, "beta": self.beta}
        for name, value in given.items():
            if value is not None:
                check_number(f"deepnorm.{name}", value, at_least=0.0)
        missing = [name for name, value in given.items() if value is None]
        if len(missing) == 1:
            raise ConfigError(
                f"deepnorm.{missing[0]} must be a number where the other constant is (or give "
                "neither: both follow from the depth), got None"
            )
        if self.alpha == 0 and self.form == "branch":
            raise ConfigError("deepnorm.alpha must not be 0 in the form 'branch', got 0")

    def constants(self, depth: Depth) -> tuple[float, float]:
        """Alpha and beta of a stack."""
        if self.alpha is not None and self.beta is not None:
            return self.alpha, self.beta
        return deepnorm_constants("decoder_only", n_decoder=depth.n_layers)

    def write_scale(self, place: WritePlace) -> WriteScale:
        """Alpha on the stream, or its inverse on the branch."""
        alpha, _ = self.constants(place.depth)
        return WriteScale(alpha) if self.form == "skip" else ConstantScale(1 / alpha)

    def init_gain(self, role: MatrixRole, depth: Depth) -> float:
        """Beta for what makes the size of the branch."""
        return branch_gain(role, self.constants(depth)[1])

    def eps_factor(self, depth: Depth) -> float:
        """``1 / alpha^2`` in the form ``branch``."""
        return 1.0 if self.form == "skip" else self.constants(depth)[0] ** -2


@dataclass(frozen=True, slots=True, kw_only=True)
class Admin(ResidualRule):
    """``x' = norm(omega_i * x + F(x))`` with a learned omega per channel and write.

    Omega starts at one and is then set to ``sqrt(sum_{j < i} Var F_j)``, the branches' variances
    measured on some data (`resstream.nn.admin.profile_admin_`).

    References:
        Liu et al. (2020), "Understanding the Difficulty of Training Transformers", section 4.
    """

    kind: ClassVar[str] = "admin"
    placement: ClassVar[Placement] = "post"
    placements: ClassVar[tuple[Placement, ...]] = ("post",)
    is_additive: ClassVar[bool] = False
    initialisation: ClassVar[Initialisation] = Xavier()

    def write_scale(self, place: WritePlace) -> WriteScale:
        """A vector on the skip."""
        return SkipChannelScale(place.d_model)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighted(ResidualRule):
    """``x' = skip * x + branch * F(norm(x))``.

    With constant weights the input reaches block L times ``skip^(2L)``.

    References:
        He et al. (2016), "Identity Mappings in Deep Residual Networks", equation 7 and section 3.1
        (constant scaling).
    """

    kind: ClassVar[str] = "weighted"
    is_additive: ClassVar[bool] = False

    branch: float = 1.0
    """Weight of the branch (alpha), or its start."""
    skip: float = 1.0
    """Weight of the stream (beta), or its start."""
    learned: bool = False
    """True: both are learned, one value per channel and write."""

    def __post_init__(self) -> None:
        check_number("weighted.branch", self.branch)
        check_number("weighted.skip", self.skip)
        check_choice("weighted.learned", self.learned, (True, False))

    def write_scale(self, place: WritePlace) -> WriteScale:
        """Two constants or two vectors."""
        if self.learned:
            return TwoChannelScales(self.branch, self.skip, place.d_model)
        return ConstantScale(self.branch, self.skip)


@dataclass(frozen=True, slots=True, kw_only=True)
class Highway(ResidualRule):
    """``x' = T * F(x) + (1 - T) * x`` with ``T = sigmoid(W x + b)``, one gate per channel.

    A negative b starts the block near the identity: the carry at first is ``sigmoid(-b)``.

    References:
        Srivastava et al. (2015), "Highway Networks", equation 3.
    """

    kind: ClassVar[str] = "highway"
    placement: ClassVar[Placement] = "none"
    placements: ClassVar[tuple[Placement, ...]] = (*ADDING, "none")
    is_additive: ClassVar[bool] = False

    bias: float = -1.0
    """Start of b; the paper's are between -1 and -10."""

    def __post_init__(self) -> None:
        check_number("highway.bias", self.bias)

    def write_scale(self, place: WritePlace) -> WriteScale:
        """A gate per channel."""
        return GateScale(place.d_model, place.d_model, self.bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicGate(ResidualRule):
    """``x' = g F(norm(x)) + (1 - g) x`` with ``g = sigmoid(w x + b)``, one gate per position.

    This is a highway block with a scalar gate.  It is sometimes ascribed to "dynamic routing" (Li
    et al. 2020), which is another thing: there whole paths are chosen.

    References:
        Srivastava et al. (2015), "Highway Networks", equation 3.
    """

    kind: ClassVar[str] = "gate"
    placements: ClassVar[tuple[Placement, ...]] = (*ADDING, "none")
    is_additive: ClassVar[bool] = False

    bias: float = 0.0
    """Start of b."""

    def __post_init__(self) -> None:
        check_number("gate.bias", self.bias)

    def write_scale(self, place: WritePlace) -> WriteScale:
        """A gate per position."""
        return GateScale(place.d_model, 1, self.bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSkip(ResidualRule):
    """``x' = A(x) + F(norm(x))``, ``A(x) = W_up gelu(W_down x)``: a bottleneck instead of the skip.

    No paper proposes this.  It is here because adapters are said to replace residual connections;
    Houlsby's adapters stand inside the branch, behind an untouched skip.

    References:
        Contrast Houlsby et al. (2019), "Parameter-Efficient Transfer Learning for NLP", figure 2.
    """

    kind: ClassVar[str] = "adapter_skip"
    is_additive: ClassVar[bool] = False

    width: int | None = None
    """Width of the bottleneck; None: a quarter of the stream's."""

    def __post_init__(self) -> None:
        if self.width is not None:
            check_whole("adapter_skip.width", self.width, at_least=1)

    def write_scale(self, place: WritePlace) -> WriteScale:
        """The bottleneck on the skip path."""
        width = max(1, place.d_model // 4) if self.width is None else self.width
        return AdapterCarry(place.d_model, width)
