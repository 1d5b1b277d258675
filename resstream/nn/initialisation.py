"""How are the matrices drawn?  Initialisations, and the roles of matrices that rules scale by."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from resstream.nn.variants import check_number

MatrixRole = Literal[
    "embed", "positions", "query", "key", "value", "attn_out", "mlp_in", "mlp_out", "unembed"
]
"""What a matrix is for; ``mlp_in`` covers the gate of SwiGLU."""
OUTPUT_ROLES: tuple[MatrixRole, ...] = ("attn_out", "mlp_out")
"""Matrices that project into the stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Initialisation:
    """What all initialisations share."""

    kind: ClassVar[str]

    def fill_(self, weight: Tensor, role: MatrixRole, n_layers: int, gain: float) -> None:
        """Draw `weight` in place; `gain` comes from the residual rule."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Normal(Initialisation):
    """``N(0, std^2)`` for every matrix, whatever its width (GPT-2, BERT)."""

    kind: ClassVar[str] = "normal"
    std: float = 0.02

    def __post_init__(self) -> None:
        check_number("normal.std", self.std, at_least=0.0)

    def fill_(self, weight: Tensor, role: MatrixRole, n_layers: int, gain: float) -> None:
        """Draw `weight` in place."""
        del role, n_layers
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

    def fill_(self, weight: Tensor, role: MatrixRole, n_layers: int, gain: float) -> None:
        """Draw `weight` in place."""
        depth_gain = 1 / math.sqrt(2 * n_layers) if role in OUTPUT_ROLES else 1.0
        nn.init.normal_(weight, std=self.std * gain * depth_gain)


@dataclass(frozen=True, slots=True, kw_only=True)
class Xavier(Initialisation):
    """``N(0, 2 gain^2 / (fan_in + fan_out))``; embeddings ``N(0, 1 / d_model)``.

    References:
        Glorot and Bengio (2010), "Understanding the difficulty of training deep feedforward neural
        networks", equation 16, in its normal form.
    """

    kind: ClassVar[str] = "xavier"

    def fill_(self, weight: Tensor, role: MatrixRole, n_layers: int, gain: float) -> None:
        """Draw `weight` in place."""
        del n_layers
        if role in ("embed", "positions"):
            nn.init.normal_(weight, std=gain / math.sqrt(weight.shape[1]))
        else:
            nn.init.xavier_normal_(weight, gain=gain)


INITIALISATIONS: tuple[type[Initialisation], ...] = (Normal, DepthScaledNormal, Xavier)
"""Every initialisation; a config names one by its `kind`."""
