"""Which parts of a model are linear?  Output matrices, the head, and norms that are held still.

A norm divides by a statistic of the stream.  Held at what it was in one run, that statistic makes
the norm an affine map, and what the stream is made of can be followed through it.  No family is
named here: the map is fitted to the norm's own outputs, and refused where it does not give them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from resstream.errors import UnsupportedModelError
from resstream.stream.model import StreamModel
from resstream.stream.spec import WriteSpec

_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-6, torch.bfloat16: 3e-2, torch.float16: 5e-3}
"""Largest error of a fitted norm, over its largest output; several norms compute in float32."""


@dataclass(frozen=True, slots=True, eq=False)
class FrozenNorm:
    """The map ``gain * scale * (x - mean(x)) + bias`` in float64; without mean if not centred."""

    gain: Float[Tensor, " d_model"]
    bias: Float[Tensor, " d_model"]
    scale: Float[Tensor, "*shape"]
    """The statistic of each token."""
    centred: bool

    def __call__(self, stream: Float[Tensor, "*shape d_model"]) -> Float[Tensor, "*shape d_model"]:
        """Map a stream, or add up what it makes of its parts with one `bias`."""
        return self.gain * self.scale[..., None] * self._centre(stream.double()) + self.bias

    def pull(self, direction: Float[Tensor, "*shape d_model"]) -> Float[Tensor, "*shape d_model"]:
        """The direction that reads before the norm what `direction` reads after it, less `bias`."""
        return self._centre(self.gain * self.scale[..., None] * direction)

    def _centre(self, values: Tensor) -> Tensor:
        return values - values.mean(-1, keepdim=True) if self.centred else values


@torch.no_grad()
def freeze_norm(
    norm: Callable[[Tensor], Tensor], stream: Float[Tensor, "*shape d_model"], *, what: str
) -> FrozenNorm:
    """Hold a norm (or any gain that works channel by channel) still at the statistics of `stream`.

    Args:
        norm: The norm.
        stream: What it reads.
        what: Its name, for the message.

    Raises:
        UnsupportedModelError: It is no such map.
    """
    width = stream.shape[-1]
    probe = 1 + 0.25 * torch.sin(torch.arange(width, device=stream.device, dtype=torch.float64))
    probe[::2] *= -1
    probe = probe.to(stream.dtype)

    def on(values: Tensor) -> Tensor:
        return norm(values.expand(1, 1, width)).double()[0, 0]

    bias = on(torch.zeros_like(probe))
    plain, shifted = on(probe), on(probe + 4.0)
    tolerance = _TOLERANCE[stream.dtype]
    centred = bool((plain - shifted).abs().max() <= 100 * tolerance * plain.abs().max())
    wide = probe.double()
    gain = (plain - bias) / (wide - wide.mean() if centred else wide)
    found = FrozenNorm(gain, bias, torch.ones(stream.shape[:-1], device=stream.device), centred)
    own, linear = norm(stream).double(), found(stream) - bias
    size = linear.square().sum(-1)
    scale = ((own - bias) * linear).sum(-1) / torch.where(size > 0, size, 1.0)
    found = FrozenNorm(gain, bias, scale, centred)
    error = (found(stream) - own).abs().max() / own.abs().max()
    if not error <= tolerance:
        raise UnsupportedModelError(
            f"{what} is not a norm that can be held still: the map fitted to it is off by "
            f"{error:.1g} of its largest output, at most {tolerance:.0e} is allowed"
        )
    return found


def final_norm(model: StreamModel) -> Callable[[Tensor], Tensor] | None:
    """The norm that the head reads through, if there is one."""
    path = model.spec.readout.norm
    return None if path is None else model.module.get_submodule(path)


def write_norm(model: StreamModel, write: WriteSpec) -> Callable[[Tensor], Tensor] | None:
    """What stands between a write's raw branch and the stream: a norm, a LayerScale, or nothing."""
    return None if write.branch is None else model.module.get_submodule(write.module)


def head_matrix(
    model: StreamModel,
) -> tuple[Float[Tensor, "d_vocab d_model"], Float[Tensor, " d_vocab"] | None]:
    """Weight and bias of the head.

    Raises:
        UnsupportedModelError: The model has no head that is one matrix.
    """
    path = model.spec.readout.head
    head = None if path is None else model.module.get_submodule(path)
    weight = getattr(head, "weight", None)
    if not isinstance(weight, Tensor) or weight.shape != (model.spec.d_vocab, model.spec.d_model):
        raise UnsupportedModelError(
            f"the head of {model.name} must be one matrix [d_vocab, d_model], got "
            f"{type(head).__name__}"
        )
    bias = getattr(head, "bias", None)
    return weight.detach(), bias.detach() if isinstance(bias, Tensor) else None


def output_matrix(
    model: StreamModel, write: WriteSpec
) -> tuple[Float[Tensor, "d_in d_model"], Float[Tensor, " d_model"] | None]:
    """Weight and bias of the matrix that projects a write's branch into the stream.

    Raises:
        UnsupportedModelError: There is not exactly one (mixtures of experts, opaque blocks).
    """
    if write.output_matrix is None:
        raise UnsupportedModelError(
            f"{write.label} of {model.name} has no single output matrix; use level='write'"
        )
    owner = _owner(model, write)
    weight = model.module.get_parameter(write.output_matrix).detach()
    bias = getattr(owner, "bias", None)
    return (
        weight if write.output_transposed else weight.T,
        bias.detach() if isinstance(bias, Tensor) else None,
    )


@contextmanager
def reading_inputs(
    model: StreamModel, writes: Sequence[WriteSpec]
) -> Iterator[dict[str, Float[Tensor, "... d_in"]]]:
    """While open, a run leaves here what each output matrix read, by the site of its write."""
    kept: dict[str, Tensor] = {}

    def keeping(site: str) -> Callable[[nn.Module, Any], None]:
        return lambda module, args: kept.update({site: args[0].detach()})

    handles = [
        _owner(model, write).register_forward_pre_hook(keeping(write.site)) for write in writes
    ]
    try:
        yield kept
    finally:
        for handle in handles:
            handle.remove()


def _owner(model: StreamModel, write: WriteSpec) -> nn.Module:
    assert write.output_matrix is not None, "callers ask only for writes that have one"
    return model.module.get_submodule(write.output_matrix.rpartition(".")[0])
