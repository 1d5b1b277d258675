"""What would the model do with other weights?  They stand in for the own ones for a while.

Only the tensors that parameters point to are exchanged, so that nothing is copied and the model has
its own weights back to the bit when the context closes.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

from resstream.errors import ConfigError


@contextmanager
def substituted(module: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Run with `weights` in the place of the parameters of these names while the context is open.

    Args:
        module: The model; tied parameters change together.
        weights: Parameter name to the tensor that stands in, of the same shape.

    Raises:
        ConfigError: The module has no such parameter, or its shape is another.
    """
    own: list[tuple[nn.Parameter, Tensor]] = []
    try:
        for name, value in weights.items():
            parameter = _parameter(module, name)
            if parameter.shape != value.shape:
                raise ConfigError(
                    f"{name} must have the shape {tuple(parameter.shape)}, got {tuple(value.shape)}"
                )
            own.append((parameter, parameter.data))
            parameter.data = value.to(parameter.device, parameter.dtype)
        yield
    finally:
        for parameter, value in reversed(own):
            parameter.data = value


def _parameter(module: nn.Module, name: str) -> nn.Parameter:
    try:
        return module.get_parameter(name)
    except AttributeError as err:
        raise ConfigError(f"the model has no parameter {name!r}") from err
