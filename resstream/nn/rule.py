"""What does a residual rule answer?  The base of all rules, with the plain rule's answers."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from resstream.nn.initialisation import Depth, Initialisation, MatrixRole, Normal
from resstream.nn.placements import PLACEMENTS, Placement
from resstream.nn.scales import WriteScale

ADDING: tuple[Placement, ...] = ("pre", "sandwich", "after", "sub", "normformer")
"""Placements with a norm and an untouched skip."""

Part = Literal["matrix", "bias", "scale", "norm", "embed"]
"""Groups of parameters that a rule may give a learning rate of their own; ``embed`` covers the
unembedding, and everything else lies in the blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlace:
    """One write of a stack: what a rule may make it depend on."""

    layer: int
    """Block, counted from 0."""
    depth: Depth
    d_model: int
    """Width of the stream that is written to."""


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
    is_additive: ClassVar[bool] = True
    """True if the skip is the stream itself, so that the stream is a sum of writes."""
    has_scalar_biases: ClassVar[bool] = False
    """True if a sublayer has Fixup's scalar biases."""
    has_norm_gain: ClassVar[bool] = True
    """False if the norms of the blocks have no learned gain or bias."""
    initialisation: ClassVar[Initialisation] = Normal()
    """Initialisation of the matrices where the config names none."""

    def write_scale(self, place: WritePlace) -> WriteScale:
        """The module that scales one write."""
        del place
        return WriteScale()

    def init_gain(self, role: MatrixRole, depth: Depth) -> float:
        """What multiplies the standard deviation of a matrix at initialisation."""
        del role, depth
        return 1.0

    def eps_factor(self, depth: Depth) -> float:
        """What multiplies the epsilon of the norms in the blocks."""
        del depth
        return 1.0

    def rate_gain(self, part: Part, depth: Depth) -> float:
        """What multiplies the learning rate (of Adam) of some parameters."""
        del part, depth
        return 1.0

    @property
    def score_weight(self) -> float | None:
        """Weight of the previous block's attention scores; None: attention does not see them."""
        return None
