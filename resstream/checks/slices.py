"""Can a fix be said in whole layers?  Then it is a recipe for mergekit, and no weights are copied.

A mergekit *slices* file lists runs of layers of checkpoints; its `passthrough` method stacks them.
What stands before the blocks comes from the checkpoint of the first slice, and what stands behind
them from that of the last (mergekit's plan).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from resstream.checks.repairs import Weights, require_fix
from resstream.errors import ConfigError
from resstream.stream.files import write_file
from resstream.stream.model import StreamModel
from resstream.stream.spec import BlockSpec
from resstream.stream.substitution import substituted

SUFFIXES = (".yaml", ".yml")
"""Names of files that hold slices; any other name is a directory for a checkpoint."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Layers `first` to `last` - 1 of a checkpoint."""

    source: str
    first: int
    last: int


def slices_of(
    model: StreamModel, weights: Weights, reference: StreamModel | None = None
) -> tuple[Slice, ...]:
    """The layers that the repaired model is made of, as runs of layers of the checkpoints.

    Args:
        model: The model as it is.
        weights: Parameters that stand in for its own in the repaired one.
        reference: Another checkpoint, which layers may be taken from.

    Raises:
        ConfigError: The fix changes a part of a layer, or what is no layer.
    """
    sources = [model] if reference is None else [model, reference]
    inner = tuple(f"{block.module}." for block in model.spec.blocks)
    outside = [name for name in _changed(model, weights) if not name.startswith(inner)]
    if outside:
        raise ConfigError(f"{_ADVICE}: this fix changes {outside[0]}, which is in no layer")
    with substituted(model.module, weights):
        wanted = [_parameters(model, block) for block in model.spec.blocks]
        silent = [_does_nothing(model, block) for block in model.spec.blocks]
    kept = [
        _place(layer, own, sources)
        for layer, (own, nothing) in enumerate(zip(wanted, silent, strict=True))
        if not nothing
    ]
    if not kept:
        raise ConfigError(f"{_ADVICE}: this fix leaves no layer")
    found = tuple(_joined(kept))
    _check_ends(found, sources)
    return found


def write_slices(
    model: StreamModel, weights: Weights, path: str | Path, reference: StreamModel | None = None
) -> Path:
    """Write the fix as a mergekit configuration (``mergekit-yaml FILE DIR`` applies it).

    Takes what `slices_of` does.

    Raises:
        ConfigError: There is no fix, it can't be said in whole layers, or a model is no checkpoint
            that mergekit could read.
        OutputError: The file can't be written.
    """
    require_fix(weights)
    found = slices_of(model, weights, reference)
    for name in {each.source for each in found}:
        if not (Path(name) / "config.json").is_file() and ("/" not in name or Path(name).exists()):
            raise ConfigError(
                f"mergekit reads directories and hub ids, and {name} is neither; "
                "give --export-fix a directory instead"
            )
    plain: dict[str, Any] = {
        "slices": [
            {"sources": [{"model": each.source, "layer_range": [each.first, each.last]}]}
            for each in found
        ],
        "merge_method": "passthrough",
        "dtype": str(model.dtype).removeprefix("torch."),
    }
    with write_file(path) as part:
        part.write_text(yaml.safe_dump(plain, sort_keys=False, default_flow_style=None), "utf-8")
    return Path(path)


_ADVICE = "a slices file takes, leaves out or exchanges whole layers; give a directory instead"


def _changed(model: StreamModel, weights: Weights) -> Iterator[str]:
    for name, value in weights.items():
        own = model.module.get_parameter(name).data
        if not torch.equal(value.to(own), own):
            yield name


def _parameters(model: StreamModel, block: BlockSpec) -> dict[str, Tensor]:
    """The block's parameters as they are now, by their names within it."""
    module = model.module.get_submodule(block.module)
    return {name: value.data for name, value in module.named_parameters()}


def _does_nothing(model: StreamModel, block: BlockSpec) -> bool:
    """True if every write of a plain block is projected by zeros, and nothing is added to it."""
    if block.opaque or block.placement != "pre":
        return False
    for write in block.writes:
        if write.output_matrix is None:
            return False
        owner = model.module.get_submodule(write.output_matrix.rpartition(".")[0])
        bias = getattr(owner, "bias", None)
        values = [model.module.get_parameter(write.output_matrix)]
        values += [bias] if isinstance(bias, Tensor) else []
        if any(bool(value.any()) for value in values):
            return False
    return True


def _place(layer: int, own: dict[str, Tensor], sources: Sequence[StreamModel]) -> Slice:
    """Where a layer with these parameters stands: best at its own place in the model itself."""
    for source in sources:
        order = sorted(range(source.spec.n_layers), key=lambda other: other != layer)
        for other in order:
            if _same(own, _parameters(source, source.spec.blocks[other])):
                return Slice(source.name, other, other + 1)
    raise ConfigError(f"{_ADVICE}: this fix changes a part of layer {layer}")


def _same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        value.shape == other[name].shape and torch.equal(value, other[name].to(value))
        for name, value in one.items()
    )


def _joined(layers: Sequence[Slice]) -> Iterator[Slice]:
    """Neighbouring layers of one checkpoint as one slice."""
    run = layers[0]
    for each in layers[1:]:
        if (each.source, each.first) == (run.source, run.last):
            run = Slice(run.source, run.first, each.last)
            continue
        yield run
        run = each
    yield run


def _check_ends(found: Sequence[Slice], sources: Sequence[StreamModel]) -> None:
    """What stands around the blocks comes with the first and last slice: it must be the same."""
    model, *others = sources
    if {found[0].source, found[-1].source} == {model.name}:
        return
    inner = tuple(f"{block.module}." for block in model.spec.blocks)
    for other in others:
        theirs = dict(other.module.named_parameters())
        for name, value in model.module.named_parameters():
            if not name.startswith(inner) and not torch.equal(value, theirs[name].to(value)):
                raise ConfigError(
                    f"{_ADVICE}: with the first or last layer of {other.name} would come its {name}"
                )
