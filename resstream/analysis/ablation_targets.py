"""What is ablated, and what takes its place?"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from resstream.errors import ConfigError, TextError
from resstream.stream.model import StreamModel
from resstream.stream.sites import match_sites
from resstream.stream.spec import WriteSpec
from resstream.stream.texts import Batch
from resstream.sweep.patches import at_edit, head_site, head_slices, patched_layers
from resstream.sweep.variants import Change, Edit, Variant, replace, resample, within, zero

Kind = Literal["zero", "mean", "resample"]
Level = Literal["sublayer", "block", "head"]
Means = dict[str, Float[Tensor, "first_or_rest channel"]]
"""Mean value at a site: row 0 at first positions, row 1 at the others."""


@dataclass(frozen=True, slots=True)
class Target:
    """Writes that are ablated together, or one head of an attention write."""

    writes: tuple[WriteSpec, ...]
    head: int | None = None
    channels: slice | None = None
    """The head's own channels of what the output projection is handed."""

    @property
    def layers(self) -> tuple[int, ...]:
        """The blocks they belong to."""
        return tuple(sorted({write.layer for write in self.writes}))

    @property
    def name(self) -> str:
        """`attn`, `mlp`, ... for one write, `block` for several."""
        return self.writes[0].name if len(self.writes) == 1 else "block"

    @property
    def sites(self) -> tuple[str, ...]:
        """Where something else is put."""
        if self.head is not None:
            return (head_site(self.writes[0].layer),)
        return tuple(write.site for write in self.writes)


def choose_targets(
    model: StreamModel,
    *,
    level: Level = "sublayer",
    sites: Sequence[str] | None = None,
    groups: Sequence[Sequence[int]] | None = None,
) -> list[Target]:
    """What is ablated: single writes, blocks, attention heads, or groups of layers.

    Raises:
        ConfigError: An unknown level, or a group with a layer that does not exist.
        UnknownSiteError: A name fits no write.
        UnsupportedModelError: The model's heads can't be told apart.
    """
    blocks = model.spec.blocks
    if groups is not None:
        if sites is not None:
            raise ConfigError("sites and groups exclude each other; give one of them")
        for group in groups:
            require_layers(group, len(blocks))
        return [Target(tuple(w for i in sorted(set(g)) for w in blocks[i].writes)) for g in groups]
    known = [write.site for write in model.spec.writes]
    sites = (sites,) if isinstance(sites, str) else sites
    if sites is not None and not sites:
        raise ConfigError("sites must name a write, such as 'blocks.*.mlp_out', got none")
    chosen = set(known if sites is None else match_sites(sites, known))
    if level == "sublayer":
        return [Target((write,)) for write in model.spec.writes if write.site in chosen]
    if level == "block":
        return [Target(b.writes) for b in blocks if any(w.site in chosen for w in b.writes)]
    if level == "head":
        return _heads(model, chosen)
    raise ConfigError(f"level must be sublayer, block or head, got {level!r}")


def require_layers(layers: Sequence[object], n_layers: int) -> None:
    """Refuse layers that the model has not.

    Raises:
        ConfigError: There is none, or one of them is no layer of the model.
    """
    if not layers or isinstance(layers, str):
        raise ConfigError(f"layers must be whole numbers, one at least, got {layers!r}")
    for layer in layers:
        if not isinstance(layer, int | np.integer) or not 0 <= layer < n_layers:
            raise ConfigError(f"layer must be in 0..{n_layers - 1}, got {layer!r}")


def _heads(model: StreamModel, chosen: set[str]) -> list[Target]:
    targets: list[Target] = []
    for layer in patched_layers(model, "head_out"):
        write = next(w for w in model.spec.blocks[layer].writes if w.name == "attn")
        if write.site in chosen:
            targets += [
                Target((write,), head, channels)
                for head, channels in enumerate(head_slices(model, layer))
            ]
    if not targets:
        raise ConfigError("level head needs attention writes, and the sites chosen are none")
    return targets


def make_variants(
    targets: Sequence[Target], kind: Kind, n_rows: int, means: Means, seed: int
) -> list[Variant]:
    """The changed runs of a batch of `n_rows` sequences.

    Raises:
        TextError: There is no other sequence to take writes from.
        ConfigError: An unknown kind.
    """
    change = _changes(kind, n_rows, means, seed)

    def edit(target: Target, site: str) -> Edit:
        if target.channels is None:
            return Edit(site, change(site, slice(None)), fixed=True)
        return Edit(site, within(target.channels, change(site, target.channels)))

    return [
        Variant(target.name, tuple(edit(target, site) for site in target.sites))
        for target in targets
    ]


def _changes(kind: Kind, n_rows: int, means: Means, seed: int) -> Callable[[str, slice], Change]:
    match kind:
        case "zero":
            return lambda site, channels: zero
        case "mean":
            return lambda site, channels: _from_mean(means[site][:, channels])
        case "resample":
            if n_rows < 2:
                raise TextError(
                    "resample takes the write from another sequence of the same length, and one "
                    "has none; give more text, or windows that all texts fill (--context 32)"
                )
            order = torch.arange(n_rows).roll(1 + seed % (n_rows - 1))
            return lambda site, channels: resample(order)
    raise ConfigError(f"kind must be zero, mean or resample, got {kind!r}")


def _from_mean(mean: Tensor) -> Change:
    """Replace by the mean at first positions (row 0) and elsewhere (row 1)."""

    def change(value: Tensor, base: Tensor) -> Tensor:
        positions = torch.ones(value.shape[1], dtype=torch.long, device=value.device)
        positions[0] = 0
        return replace(mean.to(value)[positions])(value, base)

    return change


@torch.no_grad()
def mean_values(
    model: StreamModel,
    batches: Sequence[Batch],
    targets: Sequence[Target],
    progress: Callable[[int], None],
) -> Means:
    """Mean of the values at the sites of `targets`, summed in float64."""
    sites = list(dict.fromkeys(site for target in targets for site in target.sites))
    sums: dict[str, Tensor] = {}

    def adding(site: str) -> Callable[[Tensor], None]:
        def add(value: Tensor) -> None:
            wide = value.double()
            parts = torch.stack([wide[:, 0].sum(0), wide[:, 1:].sum((0, 1))]).cpu()
            sums[site] = sums[site] + parts if site in sums else parts

        return add

    for batch in batches:
        frame = model.begin(batch.tokens)
        stream = frame.stream
        with ExitStack() as stack:
            for site in sites:
                stack.enter_context(at_edit(model, site, adding(site)))
            for layer in range(model.spec.n_layers):
                stream = model.run_block(layer, stream, frame)
                progress(batch.tokens.numel())
    sequences = sum(len(batch.rows) for batch in batches)
    rest = sum(batch.tokens.numel() for batch in batches) - sequences
    counts = torch.tensor([sequences, rest], dtype=torch.float64)
    return {site: total / counts[:, None] for site, total in sums.items()}
