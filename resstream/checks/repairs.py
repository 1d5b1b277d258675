"""Which weights would undo a fault?  Each function gives tensors that can stand in for others.

Nothing is changed in place: what a trial runs with and what a repaired checkpoint holds are the
same tensors.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from resstream.errors import ConfigError
from resstream.stream.model import StreamModel
from resstream.stream.spec import WriteSpec

Weights = dict[str, Tensor]

_LARGEST_SIDE = 2048
"""Of a matrix whose singular values are taken."""


def require_fix(weights: Weights) -> None:
    """Refuse to export where there is nothing.

    Raises:
        ConfigError: There is no fix.
    """
    if not weights:
        raise ConfigError(
            "there is no fix to export: nothing was confirmed, or no fix that was tried helps"
        )


def output_weight(model: StreamModel, write: WriteSpec) -> Tensor | None:
    """The matrix that projects into the stream as ``[d_model, d_in]``; None if there is not one."""
    if write.output_matrix is None:
        return None
    own = model.module.get_parameter(write.output_matrix).data
    return own.T if write.output_transposed else own


def _with_output(write: WriteSpec, matrix: Tensor) -> Weights:
    assert write.output_matrix is not None, "asked only where output_weight gave one"
    stored = matrix.T.contiguous() if write.output_transposed else matrix
    return {write.output_matrix: stored}


def scaled_output(model: StreamModel, write: WriteSpec, factor: float) -> Weights:
    """The output matrix, `factor` times as large; nothing if there is not exactly one."""
    own = output_weight(model, write)
    return {} if own is None else _with_output(write, own * factor)


def clipped_row(model: StreamModel, write: WriteSpec, channel: int) -> Weights:
    """The row of one stream channel brought down to the median norm of all rows."""
    own = output_weight(model, write)
    if own is None:
        return {}
    norms = torch.linalg.vector_norm(own.float(), dim=1)
    fresh = own.clone()
    fresh[channel] *= float(norms.median() / norms[channel].clamp_min(1e-30))
    return _with_output(write, fresh)


def redrawn_output(model: StreamModel, write: WriteSpec, seed: int) -> Weights:
    """A random output matrix of the same standard deviation."""
    own = output_weight(model, write)
    if own is None:
        return {}
    generator = torch.Generator().manual_seed(seed)
    fresh = torch.randn(own.shape, generator=generator).to(own) * own.float().std().to(own.dtype)
    return _with_output(write, fresh)


def denoised_output(model: StreamModel, write: WriteSpec) -> Weights:
    r"""The output matrix as it most likely was before noise was added to it.

    Singular values inside of the bulk of noise become zero, and those above lose what noise added.
    With :math:`\beta = m / n` and :math:`y = s / (\sigma \sqrt n)` a value above
    :math:`1 + \sqrt\beta` becomes :math:`\sigma \sqrt n \sqrt{(y^2 - \beta - 1)^2 - 4 \beta} / y`;
    :math:`\sigma` comes from the median singular value.  Nothing for matrices that are too large.

    Reference: Gavish and Donoho (2017), "Optimal Shrinkage of Singular Values", arXiv:1405.7511.
    """
    own = output_weight(model, write)
    if own is None or min(own.shape) > _LARGEST_SIDE or not bool(own.isfinite().all()):
        return {}
    left, values, right = torch.linalg.svd(own.double(), full_matrices=False)
    short, long = min(own.shape), max(own.shape)
    beta = short / long
    unit = float(values.median()) / math.sqrt(_marchenko_pastur_median(beta))
    if not unit > 0:
        return {}
    y = values / unit
    kept = ((y.square() - beta - 1).square() - 4 * beta).clamp_min(0).sqrt() / y
    shrunk = torch.where(y > 1 + math.sqrt(beta), kept * unit, 0.0)
    return _with_output(write, ((left * shrunk) @ right).to(own.dtype))


def _marchenko_pastur_median(beta: float) -> float:
    """Median of the squared singular values of noise of unit variance, over the longer side."""
    low, high = (1 - math.sqrt(beta)) ** 2, (1 + math.sqrt(beta)) ** 2
    at = torch.linspace(low, high, 10_001, dtype=torch.float64)[1:-1]
    mass = (((high - at) * (at - low)).sqrt() / at).cumsum(0)
    return float(at[torch.searchsorted(mass, mass[-1] / 2)])


def scaled_gain(model: StreamModel, write: WriteSpec, factor: float) -> Weights:
    """The gain of the norm that feeds the write, `factor` times as large."""
    if write.reader is None:
        return {}
    name = f"{write.reader}.weight"
    if name not in dict(model.module.named_parameters()):
        return {}
    return {name: model.module.get_parameter(name).data * factor}


def ordered_heads(model: StreamModel, write: WriteSpec, order: Sequence[int]) -> Weights:
    """The output matrix with its heads' columns in another order: slot i gets those of order[i]."""
    own = output_weight(model, write)
    if own is None:
        return {}
    heads = own.reshape(own.shape[0], len(order), -1)
    return _with_output(write, heads[:, list(order)].reshape(own.shape))


def exchanged_blocks(model: StreamModel, one: int, other: int) -> Weights:
    """The parameters of two blocks, each in the place of the other; nothing if they differ."""
    first, second = (model.spec.blocks[layer].module for layer in (one, other))
    weights: Weights = {}
    for name, value in model.module.get_submodule(first).named_parameters():
        try:
            twin = model.module.get_submodule(second).get_parameter(name)
        except AttributeError:
            return {}
        if twin.shape != value.shape:
            return {}
        weights |= {f"{first}.{name}": twin.data, f"{second}.{name}": value.data}
    return weights


def patched_value(model: StreamModel, name: str, at: Sequence[int], value: float) -> Weights:
    """One parameter with one of its values replaced."""
    fresh = model.module.get_parameter(name).data.clone()
    fresh[tuple(at)] = value
    return {name: fresh}
