"""Which matrices does a native model have?  Linear maps and embeddings that know their role."""

from torch import nn

from resstream.nn.config import TransformerConfig
from resstream.nn.initialisation import MatrixRole
from resstream.nn.norms import StreamNorm
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


def initialise(module: nn.Module, config: TransformerConfig) -> None:
    """Draw one module's own parameters as the config asks; its children are left alone."""
    if isinstance(module, Matrix | Table):
        gain = config.rule.init_gain(module.role, config.n_layers)
        config.initialisation.fill_(module.weight, module.role, config.n_layers, gain)
        bias = getattr(module, "bias", None)
        if bias is not None:
            nn.init.zeros_(bias)
    elif isinstance(module, StreamNorm | WriteScale):
        module.reset_parameters()
