"""How are the matrices drawn?  Initialisations, and the roles of matrices that rules scale by."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from resstream.nn.constants import deepnorm_constants, fixup_gain, sub_ln_gain, tfixup_gain
from resstream.nn.variants import check_choice, check_number

MatrixRole = Literal[
    "embed",
    "positions",
    "input",
    "shortcut",
    "query",
    "key",
    "value",
    "attn_out",
    "mlp_in",
    "mlp_out",
    "unembed",
]
"""What a matrix is for; ``mlp_in`` covers the gate of SwiGLU, ``input`` is a net's first matrix,
``shortcut`` one on the skip path."""
OUTPUT_ROLES: tuple[MatrixRole, ...] = ("attn_out", "mlp_out")
"""Matrices that project into the stream."""
BRANCH_ROLES: tuple[MatrixRole, ...] = ("value", "attn_out", "mlp_in", "mlp_out")
"""Matrices that make the size of a branch; query and key only make its pattern."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """How deep a stack is."""

    n_layers: int
    """Blocks."""
    n_writes: int
    """Residual branches of all blocks: two per block in a transformer."""


def branch_gain(role: MatrixRole, gain: float) -> float:
    """`gain` for what makes the size of the branch, 1 for the rest."""
    return gain if role in BRANCH_ROLES else 1.0


def fixup_role_gain(role: MatrixRole, n_writes: int) -> float:
    """0 for the last matrix of a branch and the classifier, ``L^(-1/2)`` (m = 2) before them."""
    if role in (*OUTPUT_ROLES, "unembed"):
        return 0.0
    return fixup_gain(n_writes, 2) if role in BRANCH_ROLES else 1.0


def tfixup_role_gain(
    role: MatrixRole, stack: Literal["encoder", "decoder"], n_layers: int
) -> float:
    """T-Fixup's gain of one matrix; see `resstream.nn.constants.tfixup_gain`."""
    if role in BRANCH_ROLES:
        return tfixup_gain(stack, n_layers)
    return tfixup_gain("decoder", n_layers) if role in ("embed", "positions") else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Initialisation:
    """What all initialisations share."""

    kind: ClassVar[str]
    is_whole: ClassVar[bool] = False
    """True if it has its own gains, and those of the residual rule are not put on top."""

    def fill_(self, weight: Tensor, role: MatrixRole, depth: Depth, gain: float) -> None:
        """Draw `weight` in place; `gain` comes from the residual rule."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Normal(Initialisation):
    """``N(0, std^2)`` for every matrix, whatever its width (GPT-2, BERT)."""

    kind: ClassVar[str] = "normal"
    std: float = 0.02

    def __post_init__(self) -> None:
        check_number("normal.std", self.std, at_least=0.0)

    def fill_(self, weight: Tensor, role: MatrixRole, depth: Depth, gain: float) -> None:
        """Draw `weight` in place."""
        del role, depth
        nn.init.normal_(weight, std=self.std * gain)


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthScaledNormal(Initialisation):
    """``N(0, std^2)``, and ``std / sqrt(2 L)`` for the matrices that project into the stream.

    With 2 L writes of one variance each, the stream at the end then has the same variance.

    References:
        Radford et al. (2019), "Language Models are Unsupervised Multitask Learners", section 2.3.
    """

    kind: ClassVar[str] = "depth_scaled_normal"
    std: float = 0.02

    def __post_init__(self) -> None:
        check_number("depth_scaled_normal.std", self.std, at_least=0.0)

    def fill_(self, weight: Tensor, role: MatrixRole, depth: Depth, gain: float) -> None:
        """Draw `weight` in place."""
        depth_gain = 1 / math.sqrt(depth.n_writes) if role in OUTPUT_ROLES else 1.0
        nn.init.normal_(weight, std=self.std * gain * depth_gain)


@dataclass(frozen=True, slots=True, kw_only=True)
class Xavier(Initialisation):
    """``N(0, 2 gain^2 / (fan_in + fan_out))``; embeddings ``N(0, 1 / d_model)``.

    References:
        Glorot and Bengio (2010), "Understanding the difficulty of training deep feedforward neural
        networks", equation 16, in its normal form.
    """

    kind: ClassVar[str] = "xavier"

    def fill_(self, weight: Tensor, role: MatrixRole, depth: Depth, gain: float) -> None:
        """Draw `weight` in place."""
        del depth
        if role in ("embed", "positions"):
            nn.init.normal_(weight, std=gain / math.sqrt(weight.shape[1]))
        else:
            nn.init.xavier_normal_(weight, gain=gain)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kaiming(Initialisation):
    """``N(0, 2 gain^2 / fan_in)``, which keeps variance through ReLU; embeddings ``N(0, 1 / d)``.

    References:
        He et al. (2015), "Delving Deep into Rectifiers", equation 10.
    """

    kind: ClassVar[str] = "kaiming"

    def fill_(self, weight: Tensor, role: MatrixRole, depth: Depth, gain: float) -> None:
        """Draw `weight` in place."""
        del depth
        is_table = role in ("embed", "positions")
        fan_in = weight.shape[1] if is_table else weight[0].numel()
        nn.init.normal_(weight, std=gain * math.sqrt((1 if is_table else 2) / fan_in))


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroOutput(Initialisation):
    """``N(0, std^2)``, and 0 for the matrices that project into the stream: blocks start as ``x``.

    References:
        Goyal et al. (2017), "Accurate, Large Minibatch SGD", section 5.1 (there the last gain);
        Zhang et al. (2019), Fixup, and Yang et al. (2022), "Tensor Programs V", for the matrix.
    """

    kind: ClassVar[str] = "zero_output"
    std: float = 0.02

    def __post_init__(self) -> None:
        check_number("zero_output.std", self.std, at_least=0.0)

    def fill_(self, weight: Tensor, role: MatrixRole, depth: Depth, gain: float) -> None:
        """Draw `weight` in place."""
        del depth
        nn.init.normal_(weight, std=0.0 if role in OUTPUT_ROLES else self.std * gain)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepNormInit(Xavier):
    """Xavier with gain ``(8 L)^(-1/4)`` on value, output and MLP matrices, under any rule.

    References:
        Wang et al. (2022), "DeepNet: Scaling Transformers to 1,000 Layers", figure 2.
    """

    kind: ClassVar[str] = "deepnorm"
    is_whole: ClassVar[bool] = True

    def fill_(self, weight: Tensor, role: MatrixRole, depth: Depth, gain: float) -> None:
        """Draw `weight` in place."""
        _, beta = deepnorm_constants("decoder_only", n_decoder=depth.n_layers)
        Xavier.fill_(self, weight, role, depth, gain * branch_gain(role, beta))


@dataclass(frozen=True, slots=True, kw_only=True)
class FixupInit(Kaiming):
    """Kaiming; the last matrix of a branch and the classifier 0, the others times ``L^(-1/2)``.

    L counts branches; every branch counts m = 2 matrices (value and output; up and down).  Tied
    embeddings can't be zero and stay as drawn.

    References:
        Zhang et al. (2019), "Fixup Initialization: Residual Learning Without Normalization".
    """

    kind: ClassVar[str] = "fixup"
    is_whole: ClassVar[bool] = True

    def fill_(self, weight: Tensor, role: MatrixRole, depth: Depth, gain: float) -> None:
        """Draw `weight` in place."""
        Kaiming.fill_(self, weight, role, depth, gain * fixup_role_gain(role, depth.n_writes))


@dataclass(frozen=True, slots=True, kw_only=True)
class TFixupInit(Xavier):
    """Xavier; value, output and MLP times 0.67 N^(-1/4) or (9 N)^(-1/4), embeddings (9 N)^(-1/4).

    References:
        Huang et al. (2020), "Improving Transformer Optimization Through Better Initialization".
    """

    kind: ClassVar[str] = "tfixup"
    is_whole: ClassVar[bool] = True
    stack: Literal["encoder", "decoder"] = "encoder"

    def __post_init__(self) -> None:
        check_choice("tfixup.stack", self.stack, ("encoder", "decoder"))

    def fill_(self, weight: Tensor, role: MatrixRole, depth: Depth, gain: float) -> None:
        """Draw `weight` in place."""
        gain *= tfixup_role_gain(role, self.stack, depth.n_layers)
        Xavier.fill_(self, weight, role, depth, gain)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubLNInit(Xavier):
    """Xavier with gain ``sqrt(ln 2L)`` on value, output and MLP matrices, under any rule.

    References:
        Wang et al. (2022), "Foundation Transformers" (Magneto), figure 2.
    """

    kind: ClassVar[str] = "sub_ln"
    is_whole: ClassVar[bool] = True

    def fill_(self, weight: Tensor, role: MatrixRole, depth: Depth, gain: float) -> None:
        """Draw `weight` in place."""
        gamma = sub_ln_gain("decoder_only", n_decoder=depth.n_layers)
        Xavier.fill_(self, weight, role, depth, gain * branch_gain(role, gamma))


INITIALISATIONS: tuple[type[Initialisation], ...] = (
    Normal,
    DepthScaledNormal,
    Xavier,
    Kaiming,
    ZeroOutput,
    DeepNormInit,
    FixupInit,
    TFixupInit,
    SubLNInit,
)
"""Every initialisation; a config names one by its `kind`."""
