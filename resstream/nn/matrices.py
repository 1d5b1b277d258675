"""Which matrices does a native model have?  Linear maps and embeddings that know their role."""

from typing import Protocol

from jaxtyping import Float
from torch import Tensor, nn

from resstream.nn.initialisation import Depth, Initialisation, MatrixRole
from resstream.nn.norms import HeadScale, ScalarBias, StreamNorm
from resstream.nn.rule import ResidualRule
from resstream.nn.scales import WriteScale


class Matrix(nn.Linear):
    """A linear map with a role, so that initialisations and rules can address it."""

    def __init__(self, n_in: int, n_out: int, *, role: MatrixRole, bias: bool) -> None:
        self.role: MatrixRole = role
        super().__init__(n_in, n_out, bias=bias)


class Table(nn.Embedding):
    """An embedding with a role."""

    def __init__(self, n_rows: int, width: int, *, role: MatrixRole) -> None:
        self.role: MatrixRole = role
        super().__init__(n_rows, width)


class Filter(nn.Conv2d):
    """A 3 x 3 convolution with a role, over ``[batch, height, width, channels]``."""

    def __init__(self, n_in: int, n_out: int, *, role: MatrixRole, stride: int = 1) -> None:
        self.role: MatrixRole = role
        super().__init__(n_in, n_out, 3, stride=stride, padding=1, bias=False)

    def forward(
        self, input: Float[Tensor, "batch height width n_in"]
    ) -> Float[Tensor, "batch new_height new_width n_out"]:
        """Convolve; channels are the last axis before and after."""
        return super().forward(input.movedim(-1, 1)).movedim(1, -1)


class Drawing(Protocol):
    """What drawing a model's matrices needs of its config."""

    @property
    def rule(self) -> ResidualRule:
        """The residual rule."""
        ...

    @property
    def depth(self) -> Depth:
        """Blocks and writes."""
        ...

    @property
    def initialisation(self) -> Initialisation:
        """How matrices are drawn."""
        ...


def draw_(weight: Tensor, role: MatrixRole, config: Drawing) -> None:
    """Draw one matrix in place, with the gain of the rule."""
    init = config.initialisation
    gain = 1.0 if init.is_whole else config.rule.init_gain(role, config.depth)
    init.fill_(weight, role, config.depth, gain)


def initialise(module: nn.Module, config: Drawing) -> None:
    """Draw one module's own parameters as the config asks; its children are left alone."""
    if isinstance(module, Matrix | Table | Filter):
        # A tied unembedding is the embedding, and is drawn as that.
        if not (module.role == "unembed" and getattr(config, "tied", False)):
            draw_(module.weight, module.role, config)
        bias = getattr(module, "bias", None)
        if bias is not None:
            nn.init.zeros_(bias)
    elif isinstance(module, StreamNorm | WriteScale | ScalarBias | HeadScale):
        module.reset_parameters()
