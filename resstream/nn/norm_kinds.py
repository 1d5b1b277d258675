"""Which norms are there?  Their formulas and constants."""

from dataclasses import dataclass
from typing import ClassVar

from resstream.nn.variants import check_number


@dataclass(frozen=True, slots=True, kw_only=True)
class RmsNorm:
    """``weight * x / sqrt(mean(x^2) + eps)`` (Zhang and Sennrich 2019)."""

    kind: ClassVar[str] = "rms_norm"
    eps: float = 1e-6

    def __post_init__(self) -> None:
        check_number("rms_norm.eps", self.eps, at_least=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNorm:
    """``weight * (x - mean(x)) / sqrt(var(x) + eps) + bias`` (Ba et al. 2016)."""

    kind: ClassVar[str] = "layer_norm"
    eps: float = 1e-5

    def __post_init__(self) -> None:
        check_number("layer_norm.eps", self.eps, at_least=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchNorm:
    """As LayerNorm, but over batch and places instead of channels (Ioffe and Szegedy 2015).

    In evaluation it uses running means.  For nets; a transformer refuses it.
    """

    kind: ClassVar[str] = "batch_norm"
    eps: float = 1e-5
    momentum: float = 0.1

    def __post_init__(self) -> None:
        check_number("batch_norm.eps", self.eps, at_least=0.0)
        check_number("batch_norm.momentum", self.momentum, at_least=0.0, at_most=1.0)


Norm = RmsNorm | LayerNorm
NetNorm = RmsNorm | LayerNorm | BatchNorm
RMS_NORM = RmsNorm()
"""RMSNorm with its usual epsilon."""
LAYER_NORM = LayerNorm()
"""LayerNorm with its usual epsilon."""
BATCH_NORM = BatchNorm()
"""BatchNorm with its usual constants."""
