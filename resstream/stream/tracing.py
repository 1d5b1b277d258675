"""What happens inside one block: the inputs and outputs of all its parts, in order.

The structure of a block must not depend on what its weights happen to be: a write that is exactly
zero, or a NaN, would hide it.  So a block can also be traced as its *twin*: the same modules with
random weights of sensible size, put in by `torch.func.functional_call` and gone afterwards.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from resstream.stream.calls import BlockCall, first_tensor, is_stream_like, replace_first

_DEPTH = 5
"""How many levels below the block are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTrace:
    """One call of one part (any descendant module) of a block."""

    path: str
    order: int
    """Counts calls as they end, so a part comes before the whole that holds it."""
    module: nn.Module
    inputs: dict[int | str, Tensor]
    """Tensor arguments that look like a stream, by position or name."""
    first_input: Tensor | None
    output: Tensor
    kept: Tensor
    """The output itself, not a copy: differs from `output` if it was changed in place later."""
    flat: bool
    """True if the part works on ``[batch * pos, d_model]`` (OPT's MLP); shown unflattened."""

    @property
    def depth(self) -> int:
        """Levels below the block."""
        return self.path.count(".")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTrace:
    """One run of one block."""

    stream: Tensor
    output: Tensor
    parts: tuple[PartTrace, ...]


def trace_block(
    block: nn.Module,
    call: BlockCall,
    stream: Tensor,
    *,
    weights: dict[str, Tensor] | None = None,
    edits: dict[str, Callable[[Tensor], Tensor]] | None = None,
) -> BlockTrace:
    """Run `block` once and keep what its parts received and gave.

    Args:
        block: The block.
        call: Arguments that it was seen with.
        stream: What goes in, ``[batch, pos, d_model]``.
        weights: Weights to use instead of its own (see `twin_weights`).
        edits: Changes to the outputs of parts, by path.
    """
    parts: list[PartTrace] = []
    handles = [
        part.register_forward_hook(
            _part_hook(path, parts, edits or {}, stream.shape), with_kwargs=True
        )
        for path, part in block.named_modules()
        if path and path.count(".") < _DEPTH
    ]
    args, kwargs = call.with_stream(stream.clone())
    try:
        if weights is None:
            output = block(*args, **kwargs)
        else:
            output = with_weights(block, weights, args, kwargs)
    finally:
        for handle in handles:
            handle.remove()
    result = first_tensor(output)
    if result is None:
        raise TypeError(
            f"a block must return a tensor or a tuple of them, got {type(output).__name__}"
        )
    return BlockTrace(stream=stream, output=result.clone(), parts=tuple(parts))


def _part_hook(
    path: str,
    parts: list[PartTrace],
    edits: dict[str, Callable[[Tensor], Tensor]],
    shape: torch.Size,
) -> Callable[..., Any]:
    flat_shape = (shape[0] * shape[1], shape[2])

    def unflat(value: Tensor) -> Tensor:
        return value.reshape(shape) if tuple(value.shape) == flat_shape else value

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        value = first_tensor(output)
        if value is None or not value.is_floating_point():
            return None
        named: dict[int | str, Any] = {**dict(enumerate(args)), **kwargs}
        tensors = [item for item in named.values() if isinstance(item, Tensor)]
        parts.append(
            PartTrace(
                path=path,
                order=len(parts),
                module=module,
                inputs={key: item.clone() for key, item in named.items() if is_stream_like(item)},
                first_input=unflat(tensors[0]).clone() if tensors else None,
                output=unflat(value).clone(),
                kept=unflat(value),
                flat=tuple(value.shape) == flat_shape,
            )
        )
        if path in edits:
            return replace_first(output, edits[path](value))
        return None

    return hook


def twin_weights(block: nn.Module, *, seed: int = 0) -> dict[str, Tensor] | None:
    """Random weights of sensible size for every parameter of `block`.

    Matrices get standard deviation ``1/sqrt(fan_in)``; vectors and scalars are drawn around one, so
    that no gate is closed and no gain is zero.  None if the block has no floating parameters or
    holds packed (quantised) ones, whose structure can only be seen with their own values.
    """
    drawn: dict[Tensor, Tensor] = {}
    for index, value in enumerate(block.parameters()):
        if not value.is_floating_point() or type(value) is not nn.Parameter:
            return None
        generator = torch.Generator().manual_seed(seed * 7919 + index)
        noise = torch.randn(value.shape, generator=generator)
        sized = noise / math.sqrt(value.shape[-1]) if value.ndim >= 2 else 1 + 0.2 * noise
        drawn[value] = sized.to(device=value.device, dtype=value.dtype)
    # One name for each place that holds a parameter: a module may stand in a block twice.
    places = (
        place
        for path, module in block.named_modules()
        for place in module.named_parameters(path, recurse=False, remove_duplicate=False)
    )
    return {name: drawn[value] for name, value in places} or None


def with_weights(
    module: nn.Module, weights: dict[str, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run `module` with `weights` in the place of its own, which it has again afterwards.

    Torch must not follow ties by itself: where one module stands in two places (a TransformerLens
    bridge does that) it would put the new weights in twice and take them out once.
    """
    return torch.func.functional_call(
        module, weights, args, kwargs, tie_weights=False, strict=False
    )
