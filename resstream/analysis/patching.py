"""Where does what decides the answer lie?  Activation patching over layers and positions, exact.

A cell (layer, position) is patched by putting the value that one run has there into the other run,
and looking at the answer.  The effect is the patched metric less that of the run patched into;
normalised, ``(patched - corrupted) / (clean - corrupted)``: 0 is the corrupted run, 1 the clean
one.  It is not clipped.

References:
    Zhang and Nanda (2023), "Towards Best Practices of Activation Patching", arXiv:2309.16042;
    Heimersheim and Nanda (2024), "How to use and interpret activation patching", arXiv:2404.15255.
"""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from resstream.analysis.ablation_targets import require_layers
from resstream.analysis.attribution_patching import estimate_pairs
from resstream.analysis.pairs import EncodedPair, Pairs, encode_pairs, read_pairs
from resstream.analysis.patch_result import (
    PatchResult,
    make_result,
    pairs_hash,
    stacked,
)
from resstream.errors import ConfigError
from resstream.stream.model import StreamModel
from resstream.sweep.grid import Grid, GridOptions, TokenPair
from resstream.sweep.journal import Journal
from resstream.sweep.metrics import Direction, Metric, require_known
from resstream.sweep.patches import PatchSite

Progress = Callable[[int, int], None]


def patch(  # noqa: PLR0913  (the options of a sweep, all with defaults)
    model: StreamModel,
    pairs: Pairs,
    *,
    site: PatchSite = "resid_pre",
    metric: Metric = "logit_diff",
    direction: Direction = "denoising",
    layers: Sequence[int] | None = None,
    skip_unchanged: bool = True,
    memory: int | None = None,
    screen: int | None = None,
    bos: bool | None = None,
    seed: int = 0,
    journal: Journal | None = None,
    progress: Progress | None = None,
) -> PatchResult:
    """Patch every layer and position of every pair, exactly.

    Args:
        model: A causal language model.
        pairs: Prompts and answers: `Pair`, mappings, or a file (see `resstream.analysis.pairs`).
        site: What is patched.  `head_out` takes every attention head apart.
        metric: What is measured at the last position.
        direction: `denoising`: clean values into the corrupted run; `noising`: the reverse.
        layers: Only these layers.
        skip_unchanged: Answer cells that can't change anything without running them.
        memory: Bytes that the sweep may take beside the model; half of what is free if None.
        screen: Estimate every cell to first order and run only this many, the most promising.
        bos: Begin prompts with the BOS token; None does as the tokenizer does by default.
        seed: Of the bootstrap over pairs.
        journal: Where finished chunks are kept, to go on after an interruption.
        progress: Called with what is done and what there is to do, in layer-tokens.

    Raises:
        UnsupportedModelError: The model does not predict tokens, or lacks known heads.
        UnknownSiteError: The architecture has no such site.
        TextError: Pairs can't be read, their lengths differ, or their answers can't be told apart.
        ConfigError: An unknown option, or too little memory.
    """
    grid, encoded = prepare(
        model, pairs, site=site, metric=metric, direction=direction, bos=bos,
        options=GridOptions(layers=layers, skip_unchanged=skip_unchanged, memory=memory),
    )  # fmt: skip
    return run_prepared(grid, encoded, screen=screen, seed=seed, journal=journal, progress=progress)


def prepare(  # noqa: PLR0913  (the options of a sweep)
    model: StreamModel,
    pairs: Pairs,
    *,
    site: PatchSite = "resid_pre",
    metric: Metric = "logit_diff",
    direction: Direction = "denoising",
    bos: bool | None = None,
    options: GridOptions | None = None,
) -> tuple[Grid, list[EncodedPair]]:
    """The sweep that `patch` would run, checked but not begun; its `plan` says what it costs."""
    model.require_language_model("patch")
    options = options or GridOptions()
    require_known(metric, direction)
    if options.layers is not None:
        require_layers(options.layers, model.spec.n_layers)
    encoded = encode_pairs(
        model,
        read_pairs(pairs),
        needs_answer=metric != "kl",
        needs_wrong=metric == "logit_diff",
        bos=bos,
    )
    tokens = [
        TokenPair(
            pair.clean, pair.corrupted, pair.answer, pair.wrong, pair.first_difference, pair.noise
        )
        for pair in encoded
    ]
    grid = Grid(model, tokens, site=site, metric=metric, direction=direction, options=options)
    return grid, encoded


def run_prepared(
    grid: Grid,
    encoded: Sequence[EncodedPair],
    *,
    screen: int | None = None,
    seed: int = 0,
    journal: Journal | None = None,
    progress: Progress | None = None,
) -> PatchResult:
    """Run what `prepare` gave; the arguments are those of `patch`."""
    estimates = None
    if screen is not None:
        if screen < 1:
            raise ConfigError(f"screen must be at least 1 cell, got {screen}")
        estimates = stacked(_estimates(grid, encoded)).mean(0)
        only = _most_promising(estimates, encoded, screen, by_head=grid.n_heads is not None)
        grid = grid.restricted(only)
    if journal is not None:
        grid.settle(journal, _settings(grid, encoded, screen))
    run = grid.run(journal=journal, progress=progress)
    shown = estimates if estimates is None or grid.n_heads is not None else estimates[..., 0]
    return make_result(grid, encoded, run, seed=seed, estimates=shown)


def _estimates(
    grid: Grid, encoded: Sequence[EncodedPair]
) -> list[Float[np.ndarray, "layer pos head"]]:
    found = estimate_pairs(
        grid.model, encoded, site=grid.site, metric=grid.metric, direction=grid.direction
    )
    missing = [layer for layer in range(grid.model.spec.n_layers) if layer not in grid.layers]
    for estimate in found:
        estimate[missing] = np.nan
    return found


def _most_promising(
    estimates: Float[np.ndarray, "layer pos head"],
    encoded: Sequence[EncodedPair],
    count: int,
    *,
    by_head: bool,
) -> list[frozenset[tuple[int, int, int | None]]]:
    """The cells with the largest estimates, for each pair in its own positions."""
    sizes = np.nan_to_num(np.abs(estimates), nan=-1.0)
    order = np.argsort(-sizes, axis=None, kind="stable")[:count]
    places = [np.unravel_index(at, sizes.shape) for at in order if sizes.flat[at] >= 0]
    longest = estimates.shape[1]
    chosen: list[frozenset[tuple[int, int, int | None]]] = []
    for pair in encoded:
        shift = longest - pair.length
        chosen.append(
            frozenset(
                (int(layer), int(position) - shift, int(head) if by_head else None)
                for layer, position, head in places
                if position >= shift
            )
        )
    return chosen


def _settings(grid: Grid, encoded: Sequence[EncodedPair], screen: int | None) -> dict[str, object]:
    """What a begun sweep must share with the one that goes on with it."""
    return {
        "model": grid.model.weights_hash,
        "pairs": pairs_hash(encoded),
        "site": grid.site,
        "metric": grid.metric,
        "direction": grid.direction,
        "layers": list(grid.layers),
        "skip_unchanged": grid.options.skip_unchanged,
        "screen": screen,
    }
