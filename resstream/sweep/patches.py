"""Which values can be taken from another run, and how are they read and replaced?"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from resstream.errors import UnknownSiteError, UnsupportedModelError
from resstream.stream.hooks import Hook
from resstream.stream.model import StreamModel
from resstream.stream.sites import block_site
from resstream.stream.spec import BlockSpec

PatchSite = Literal[
    "resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out", "mixer_out", "head_out"
]
"""Where a value is replaced; `head_out` is what a head hands to the output projection."""

_HEAD_COUNTS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_LAYER_KINDS = ("layer_types", "layers_block_type")


@dataclass(frozen=True, slots=True)
class Cell:
    """One variant of a patching sweep: the value at one place comes from the other run."""

    sequence: int
    layer: int
    position: int
    head: int | None = None


def patched_layers(model: StreamModel, site: str) -> tuple[int, ...]:
    """The layers that have `site`.

    Raises:
        UnknownSiteError: There is no such site, in this model or at all.
        UnsupportedModelError: The model's heads could not be told apart.
    """
    known = get_args(PatchSite)
    if site not in known:
        raise UnknownSiteError(f"site must be one of {', '.join(known)}, got {site!r}")
    if site == "head_out":
        layers = tuple(layer for layer in range(model.spec.n_layers) if _head_matrix(model, layer))
        if not layers or head_count(model) is None:
            raise UnsupportedModelError(
                f"heads need an attention write with one output matrix and a known number of heads;"
                f" {model.name} ({model.spec.family}) has none; use its whole writes instead"
            )
        return layers
    layers = tuple(
        layer for layer in range(model.spec.n_layers) if block_site(layer, site) in model.sites
    )
    if not layers:
        have = [name for name in known if block_site(0, name) in model.sites]
        raise UnknownSiteError(
            f"{model.name} ({model.spec.family}) has no {site}; layer 0 has {', '.join(have)}"
        )
    return layers


def head_count(model: StreamModel) -> int | None:
    """Attention heads of a layer, as the configuration says."""
    config = _config(model)
    found = (getattr(config, name, None) for name in _HEAD_COUNTS)
    return next((count for count in found if isinstance(count, int)), None)


def _config(model: StreamModel) -> Any:
    config = getattr(model.module, "config", None)
    if config is not None and hasattr(config, "get_text_config"):
        return config.get_text_config()  # of a model that also sees pictures
    return config


def _has_heads(model: StreamModel, layer: int) -> bool:
    """False for the layers of a hybrid that are no attention: state spaces, convolutions."""
    for name in _LAYER_KINDS:
        kinds = getattr(_config(model), name, None)
        if isinstance(kinds, list | tuple) and len(kinds) > layer:
            kind = str(kinds[layer])
            return "attention" in kind and "linear" not in kind
    return True


def _head_matrix(model: StreamModel, layer: int) -> str | None:
    if not _has_heads(model, layer):
        return None
    for write in model.spec.blocks[layer].writes:
        if write.name == "attn" and write.output_matrix is not None:
            return write.output_matrix.rpartition(".")[0]
    return None


@contextmanager
def at_site(model: StreamModel, layer: int, site: str, hook: Hook) -> Iterator[None]:
    """Hook a site of a block; at `head_out` the value is ``[batch, pos, n_heads * d_head]``."""
    if site != "head_out":
        with model.hooked({block_site(layer, site): hook}):
            yield
        return
    path = _head_matrix(model, layer)
    assert path is not None, "asked for by `patched_layers`"

    def run(module: Any, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        del module
        changed = hook(args[0])
        return None if changed is None else (changed, *args[1:])

    handle = model.module.get_submodule(path).register_forward_pre_hook(run)
    try:
        yield
    finally:
        handle.remove()


def only_adds(block: BlockSpec) -> bool:
    """True if what the block hands on is the stream that it read plus its writes."""
    return not block.stream_norms and all(write.skip_scale == 1.0 for write in block.writes)


def is_last_word(block: BlockSpec, site: str) -> bool:
    """True if `site` is a write that no other write of its block depends on."""
    order = [write.site for write in block.writes]
    return only_adds(block) and site in (order if block.parallel else order[-1:])


def head_site(layer: int) -> str:
    """Name of the place where a block's heads hand their outputs to the output projection."""
    return block_site(layer, "head_out")


@contextmanager
def at_edit(model: StreamModel, site: str, hook: Hook) -> Iterator[None]:
    """Hook a site by its full name, which may be that of `head_site`."""
    if site.endswith(".hook_head_out"):
        with at_site(model, int(site.split(".")[1]), "head_out", hook):
            yield
    else:
        with model.hooked({site: hook}):
            yield


def head_slices(model: StreamModel, layer: int) -> list[slice]:
    """For each attention head, which channels of what the output projection is handed are its own.

    Raises:
        UnsupportedModelError: The heads can't be told apart.
    """
    path, count = _head_matrix(model, layer), head_count(model)
    assert path is not None and count is not None, "asked for by `patched_layers`"
    write = next(write for write in model.spec.blocks[layer].writes if write.name == "attn")
    shape = model.module.get_parameter(f"{path}.weight").shape
    width = shape[0] if write.output_transposed else shape[1]
    return [head_slice(model, width, head) for head in range(count)]


def head_slice(model: StreamModel, width: int, head: int | None) -> slice:
    """Which channels of a value belong to `head`; all of them for None."""
    if head is None:
        return slice(None)
    count = head_count(model)
    assert count is not None, "asked for by `patched_layers`"
    if width % count:
        raise UnsupportedModelError(f"{width} channels are not those of {count} heads")
    size = width // count
    return slice(head * size, (head + 1) * size)


def replacing(values: Tensor, channels: slice) -> Callable[[Tensor], Tensor]:
    """A hook that puts `values` into the channels, at all positions."""

    def change(value: Tensor) -> Tensor:
        if channels == slice(None):
            return values.to(value).expand_as(value).clone()  # some models add to it in place
        changed = value.clone()
        changed[..., channels] = values[..., channels].to(value)
        return changed

    return change


def replacing_at(values: Tensor, positions: Tensor, channels: slice) -> Callable[[Tensor], Tensor]:
    """A hook that puts row ``values[i]`` at position ``positions[i]`` of sequence ``i``."""

    def change(value: Tensor) -> Tensor:
        changed = value.clone()
        rows = torch.arange(len(positions), device=value.device)
        row = changed[rows, positions]
        row[:, channels] = values[:, channels].to(value)
        changed[rows, positions] = row
        return changed

    return change
