"""Break one layer on purpose: the faults by which detectors are tested (contracts, "Faults").

Every fault edits the weights of the module in place, at places that discovery found.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from resstream.errors import ConfigError, UnsupportedModelError
from resstream.stream.model import StreamModel
from resstream.stream.spec import WriteSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """What was done to a model."""

    fault: str
    layer: int
    write: str | None
    severity: float | None
    seed: int
    detail: str
    """What exactly was changed, in a sentence."""


@dataclass(frozen=True, slots=True)
class _Target:
    """The place of a fault: a model, a layer, one of its writes, how much, and a generator."""

    model: StreamModel
    layer: int
    write: str | None
    severity: float | None
    generator: torch.Generator
    other: StreamModel | None

    @property
    def spec(self) -> WriteSpec:
        """The write that is meant."""
        writes = self.model.spec.blocks[self.layer].writes
        found = [item for item in writes if item.name == self.write]
        if not found and (self.write is not None or len(writes) > 1):
            names = ", ".join(item.name for item in writes)
            raise ConfigError(
                f"write must be one of {names} in layer {self.layer}, got {self.write}"
            )
        return next(iter(found or writes))

    @property
    def amount(self) -> float:
        """The severity, which this fault needs."""
        if self.severity is None:
            raise ConfigError("this fault needs a severity")
        if not math.isfinite(self.severity):
            raise ConfigError(f"severity must be a finite number, got {self.severity:g}")
        return self.severity

    def matrix(self) -> Tensor:
        """The output matrix as ``[d_model, in]``, a view into the weights."""
        if self.spec.output_matrix is None:
            raise UnsupportedModelError(
                f"{self.spec.label} has no single output matrix (mixture of experts, or an opaque "
                "block), so this fault can't be put there"
            )
        weight = self.model.module.get_parameter(self.spec.output_matrix).data
        return weight.T if self.spec.output_transposed else weight

    def block(self, layer: int) -> nn.Module:
        """A block of the model."""
        n_layers = self.model.spec.n_layers
        if not 0 <= layer < n_layers:
            raise ConfigError(f"layer must be in 0..{n_layers - 1}, got {layer}")
        return self.model.module.get_submodule(self.model.spec.blocks[layer].module)

    def randn(self, like: Tensor) -> Tensor:
        """Normal noise of the shape of `like`."""
        return torch.randn(like.shape, generator=self.generator).to(like)

    def randint(self, high: int) -> int:
        """A whole number in ``0..high - 1``."""
        return int(torch.randint(high, (), generator=self.generator))


@torch.no_grad()
def inject(  # noqa: PLR0913  (all but the first two are options)
    model: StreamModel,
    fault: str,
    *,
    layer: int,
    write: str | None = None,
    severity: float | None = None,
    seed: int = 0,
    other: StreamModel | None = None,
) -> Injection:
    """Damage `model` in place.

    Args:
        model: The model; its weights are changed.
        fault: One of `FAULTS`.
        layer: Which block, counted from 0.
        write: Which of its writes (`attn`, `mlp`, `mixer`); not needed for faults of whole layers.
        severity: How much; its meaning depends on the fault.
        seed: Of channels, noise and permutations.
        other: For ``stale``: the checkpoint that the layer is taken from.

    Raises:
        ConfigError: The fault, the layer, the write or the severity does not exist.
        UnsupportedModelError: The model has no such part.
    """
    if fault not in FAULTS:
        raise ConfigError(f"unknown fault {fault!r}; there are {', '.join(FAULTS)}")
    generator = torch.Generator().manual_seed(seed)
    target = _Target(model, layer, write, severity, generator, other)
    target.block(layer)
    detail = FAULTS[fault](target)
    return Injection(
        fault=fault, layer=layer, write=write, severity=severity, seed=seed, detail=detail
    )


def _zero(target: _Target) -> str:
    target.matrix().zero_()
    return f"{target.spec.output_matrix} = 0"


def _scale(target: _Target) -> str:
    target.matrix().mul_(target.amount)
    return f"{target.spec.output_matrix} * {target.amount:g}"


def _gain_scale(target: _Target) -> str:
    path = target.spec.reader
    if path is None:
        raise UnsupportedModelError(f"{target.spec.label} is not fed by a norm")
    norm = target.model.module.get_submodule(path)
    gain = getattr(norm, "weight", None)
    if not isinstance(gain, Tensor):
        raise UnsupportedModelError(f"the norm {path} has no gain")
    offset = _gain_offset(norm, gain)
    gain.data.copy_((gain.data + offset) * target.amount - offset)
    return f"gain of {path} * {target.amount:g}"


def _gain_offset(norm: nn.Module, gain: Tensor) -> float:
    """1 for norms that multiply by ``1 + weight`` (Gemma), else 0: what a zero weight passes."""
    generator = torch.Generator().manual_seed(0)
    probe = torch.randn((1, 1, gain.shape[-1]), generator=generator).to(gain)
    without = torch.func.functional_call(
        norm, {"weight": torch.zeros_like(gain)}, (probe,), strict=False
    )
    bias = getattr(norm, "bias", None)
    passed = without - bias if isinstance(bias, Tensor) else without
    return 1.0 if bool(passed.abs().max() > 0.1) else 0.0


def _reinit(target: _Target) -> str:
    matrix = target.matrix()
    matrix.copy_(target.randn(matrix) * matrix.std())
    return f"{target.spec.output_matrix} redrawn with its own standard deviation"


def _noise(target: _Target) -> str:
    matrix = target.matrix()
    matrix.add_(target.randn(matrix) * matrix.std() * target.amount)
    return f"{target.spec.output_matrix} + {target.amount:g} standard deviations of noise"


def _sign_flip(target: _Target) -> str:
    target.matrix().neg_()
    return f"{target.spec.output_matrix} * -1"


def _channel_spike(target: _Target) -> str:
    matrix = target.matrix()
    channel = target.randint(matrix.shape[0])
    matrix[channel].mul_(target.amount)
    return f"row of channel {channel} of {target.spec.output_matrix} * {target.amount:g}"


def _quantize(target: _Target) -> str:
    bits = _whole(target, 2, 16)
    matrix = target.matrix()
    levels = 2 ** (bits - 1) - 1
    step = matrix.abs().amax(dim=1, keepdim=True).clamp_min(1e-30) / levels
    matrix.copy_((matrix / step).round() * step)
    return f"{target.spec.output_matrix} rounded to {bits} bits a row"


def _bit_flip(target: _Target) -> str:
    bit = _whole(target, 0, 31)
    matrix = target.matrix()
    if matrix.dtype is not torch.float32:
        raise ConfigError(f"bit_flip needs float32 weights, got {matrix.dtype}; load in float32")
    row, column = target.randint(matrix.shape[0]), target.randint(matrix.shape[1])
    flipped = matrix[row, column].clone().view(torch.int32) ^ torch.tensor(
        1 << bit if bit < 31 else -(1 << 31), dtype=torch.int32
    )
    matrix[row, column] = flipped.view(torch.float32)
    return f"bit {bit} of [{row}, {column}] of {target.spec.output_matrix}"


def _permute_heads(target: _Target) -> str:
    matrix, n_heads = target.matrix(), _n_heads(target)
    order = torch.randperm(n_heads, generator=target.generator)
    if torch.equal(order, torch.arange(n_heads)):
        order = order.roll(1)
    heads = matrix.reshape(matrix.shape[0], n_heads, -1)
    matrix.copy_(heads[:, order].reshape(matrix.shape))
    return f"heads of {target.spec.output_matrix} in the order {order.tolist()}"


def _n_heads(target: _Target) -> int:
    config: Any = getattr(target.model.module, "config", None)
    n_heads = getattr(config, "num_attention_heads", None)
    if target.spec.name != "attn" or not isinstance(n_heads, int) or n_heads < 2:
        raise UnsupportedModelError(f"{target.spec.label} has no heads to permute")
    return n_heads


def _uniform_attention(target: _Target) -> str:
    root = target.spec.branch or target.spec.module
    part = target.model.module.get_submodule(
        root.rpartition(".")[0] if root.endswith("_proj") else root
    )
    for name, module in part.named_modules():
        if name.rpartition(".")[2] in ("q_proj", "query", "q", "q_lin", "W_Q"):
            for value in module.parameters():
                value.data.zero_()
            return f"query matrix {root}.{name} = 0"
    raise UnsupportedModelError(f"{target.spec.label} has no query matrix of its own")


def _swap(target: _Target) -> str:
    goal = target.layer + _whole(target, -target.model.spec.n_layers, target.model.spec.n_layers)
    one, two = target.block(target.layer), target.block(goal)
    first = {name: value.clone() for name, value in one.state_dict().items()}
    _copy_block(two, one)
    two.load_state_dict(first)
    return f"layers {target.layer} and {goal} swapped"


def _duplicate(target: _Target) -> str:
    _copy_block(target.block(target.layer), target.block(target.layer + 1))
    return f"layer {target.layer} copied over layer {target.layer + 1}"


def _copy_block(source: nn.Module, goal: nn.Module) -> None:
    try:
        goal.load_state_dict(source.state_dict())
    except RuntimeError as err:
        raise UnsupportedModelError("these two layers have different shapes") from err


def _rank_one(target: _Target) -> str:
    matrix = target.matrix()
    left, size, right = torch.linalg.svd(matrix.float(), full_matrices=False)
    matrix.copy_((left[:, :1] * size[:1]) @ right[:1])
    return f"{target.spec.output_matrix} reduced to rank one"


def _nan(target: _Target) -> str:
    matrix = target.matrix()
    row, column = target.randint(matrix.shape[0]), target.randint(matrix.shape[1])
    matrix[row, column] = torch.nan
    return f"[{row}, {column}] of {target.spec.output_matrix} = NaN"


def _rope_base(target: _Target) -> str:
    config: Any = getattr(target.model.module, "config", None)
    rope = getattr(config, "rope_parameters", None)
    found = [part for part in target.model.module.modules() if hasattr(part, "inv_freq")]
    if not isinstance(rope, dict) or "rope_theta" not in rope or not found:
        raise UnsupportedModelError(f"{target.model.name} has no rotary base in its config")
    before = rope["rope_theta"]
    rope["rope_theta"] = target.amount
    for part in found:
        fresh: Any = type(part)(config)
        part.inv_freq = fresh.inv_freq.to(target.model.device)
    return f"rotary base {before:g} -> {target.amount:g} (all layers)"


def _stale(target: _Target) -> str:
    if target.other is None:
        raise ConfigError("the fault 'stale' needs another checkpoint to take the layer from")
    source = target.other.spec.blocks
    if target.layer >= len(source):
        raise ConfigError(f"{target.other.name} has only {len(source)} layers, no {target.layer}")
    _copy_block(
        target.other.module.get_submodule(source[target.layer].module), target.block(target.layer)
    )
    return f"layer {target.layer} taken from {target.other.name}"


def _whole(target: _Target, low: int, high: int) -> int:
    value = target.amount
    if value != int(value) or not low <= value <= high:
        raise ConfigError(f"severity must be a whole number in {low}..{high}, got {value:g}")
    return int(value)


FAULTS: dict[str, Callable[[_Target], str]] = {
    "zero": _zero,
    "scale": _scale,
    "gain_scale": _gain_scale,
    "reinit": _reinit,
    "noise": _noise,
    "sign_flip": _sign_flip,
    "channel_spike": _channel_spike,
    "quantize": _quantize,
    "bit_flip": _bit_flip,
    "permute_heads": _permute_heads,
    "uniform_attention": _uniform_attention,
    "swap": _swap,
    "duplicate": _duplicate,
    "rank_one": _rank_one,
    "nan": _nan,
    "rope_base": _rope_base,
    "stale": _stale,
}
"""All faults by name; contracts.md says what each does and what its severity means."""
