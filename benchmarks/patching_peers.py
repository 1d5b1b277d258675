"""How others patch one cell at a time: TransformerLens, nnsight, and plain hooks on transformers.

Each runs a whole forward for a cell, as its users do, and is timed on chosen cells.
"""

import statistics
import time
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch

import resstream as rs

TRANSFORMER_LENS = {
    "resid_pre": "get_act_patch_resid_pre",
    "attn_out": "get_act_patch_attn_out",
    "mlp_out": "get_act_patch_mlp_out",
}
Cells = list[tuple[int, int]]
"""Layers and positions."""
Pair = dict[str, Any]


class Clock:
    """Wall and processor seconds of calls."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []

    def __call__(self, function: Callable[[], Any]) -> Any:
        """Run and time `function`."""
        wall, cpu = time.perf_counter(), time.process_time()
        value = function()
        self.wall.append(time.perf_counter() - wall)
        self.cpu.append(time.process_time() - cpu)
        return value

    def summary(self, times: float = 1.0) -> dict[str, float]:
        """Medians and spread, scaled by `times`."""
        return {
            "wall_s": times * statistics.median(self.wall),
            "wall_spread_s": times * (max(self.wall) - min(self.wall)),
            "cpu_s": times * statistics.median(self.cpu),
        }


Timed = tuple[Clock, list[float]]
"""How long each cell took, and its metric."""


def prompts(pair: Pair) -> tuple[torch.Tensor, torch.Tensor]:
    """Clean and corrupted token ids, ``[1, pos]`` each."""
    return torch.tensor([pair["clean"]]), torch.tensor([pair["corrupted"]])


def difference(logits: torch.Tensor, pair: Pair) -> torch.Tensor:
    """Logit of the answer less that of the wrong one, at the last position."""
    return logits[0, -1, pair["answer"]] - logits[0, -1, pair["wrong"]]


@torch.no_grad()
def transformer_lens(bridge: Any, pair: Pair, site: str, cells: Cells) -> Timed:
    """TransformerLens's own loop over cells, given those that are wanted."""
    import pandas as pd
    from transformer_lens import patching

    clean, corrupted = prompts(pair)
    _, cache = bridge.run_with_cache(clean)
    function = getattr(patching, TRANSFORMER_LENS[site])

    def run(layer: int, position: int) -> Any:
        frame = pd.DataFrame([{"layer": layer, "pos": position}])
        metric = lambda logits: difference(logits, pair)  # noqa: E731
        return function(bridge, corrupted, cache, metric, index_axis_names=None, index_df=frame)

    clock = Clock()
    return clock, [float(clock(lambda cell=cell: run(*cell)).flatten()[0]) for cell in cells]


@torch.no_grad()
def plain_hooks(module: Any, pair: Pair, site: str, cells: Cells) -> Timed:
    """A forward hook of torch on the module that writes, or one before the block."""
    from resstream.sweep.reference import base_values

    model = rs.load(module)
    clean, corrupted = prompts(pair)
    names = {layer: f"blocks.{layer}.hook_{site}" for layer in range(model.spec.n_layers)}
    source = base_values(model, clean, list(names.values()))
    clock, values = Clock(), []
    for layer, position in cells:

        def put(value: torch.Tensor, site: str = names[layer], at: int = position) -> torch.Tensor:
            changed = value.clone()
            changed[:, at] = source[site][:, at]
            return changed

        with model.hooked({names[layer]: put}):
            values.append(float(difference(clock(lambda: module(corrupted).logits), pair)))
    return clock, values


@torch.no_grad()
def nnsight(module: Any, pair: Pair, site: str, cells: Cells) -> Timed:
    """A trace of nnsight for each cell, with the stream before a block set at one position."""
    from nnsight import NNsight, save  # pyright: ignore[reportMissingImports]

    if site != "resid_pre":
        raise SystemExit("nnsight is compared at resid_pre")
    paths = [block.module for block in rs.load(module).spec.blocks]
    wrapped = NNsight(module)
    blocks = [reduce(_part, path.split("."), wrapped) for path in paths]
    clean, corrupted = prompts(pair)
    with wrapped.trace(clean):
        source = save([block.input for block in blocks])

    def run(layer: int, position: int) -> torch.Tensor:
        with wrapped.trace(corrupted):
            blocks[layer].input[:, position] = source[layer][:, position]
            logits = wrapped.output.logits.save()
        return logits

    clock = Clock()
    return clock, [float(difference(clock(lambda cell=cell: run(*cell)), pair)) for cell in cells]


def _part(parent: Any, name: str) -> Any:
    return parent[int(name)] if name.isdigit() else getattr(parent, name)


@torch.no_grad()
def by_hand(bridge: Any, pair: Pair, layers: list[int]) -> Clock:
    """A user who batches the positions of a layer by hand: one forward of [pos, pos] a layer."""
    clean, corrupted = prompts(pair)
    length = clean.shape[1]
    _, cache = bridge.run_with_cache(clean)
    tokens, rows = corrupted.expand(length, -1), torch.arange(length)
    clock = Clock()
    for layer in layers:
        site = f"blocks.{layer}.hook_resid_pre"

        def put(value: torch.Tensor, hook: Any, site: str = site) -> torch.Tensor:
            del hook
            value = value.clone()
            value[rows, rows] = cache[site][0]
            return value

        hooks = [(site, put)]
        clock(lambda hooks=hooks: bridge.run_with_hooks(tokens, fwd_hooks=hooks))
    return clock


PEERS: dict[str, Callable[[Any, Pair, str, Cells], Timed]] = {
    "transformer-lens": transformer_lens,
    "nnsight": nnsight,
    "plain-hooks": plain_hooks,
}
