"""What sets off a variant: at one block, one row of the base run's stream is another."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from resstream.stream.model import Frame
from resstream.sweep.attention import AttentionCall


@dataclass(frozen=True, slots=True)
class Start:
    """A variant: the base run up to block `layer`, where the stream at `position` becomes `row`."""

    index: int
    """Which variant of the sweep this is."""
    sequence: int
    layer: int
    """The block that reads the changed row; `n_layers` if only the readout does."""
    position: int
    row: Float[Tensor, " d_model"]


@dataclass(frozen=True, slots=True)
class HeardRun:
    """An unchanged run of sequences of one length, with what their suffixes need."""

    tokens: Tensor
    frame: Frame
    streams: tuple[Float[Tensor, "batch pos d_model"], ...]
    """The stream before each block, and after the last."""
    attention: tuple[AttentionCall, ...]
    """What each block's attention was called with; empty if suffixes can't be run alone."""

    @property
    def length(self) -> int:
        """Positions of each sequence."""
        return self.tokens.shape[1]
