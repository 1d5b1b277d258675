"""Does attention lose the differences between tokens, with and without mask, skip and norm?"""

import math
from dataclasses import replace
from itertools import pairwise

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float
from torch import Tensor

from resstream.nn.attention import Attention
from resstream.nn.config import NoPositions
from resstream.nn.matrices import initialise
from resstream.train.experiments.experiment import (
    Chart,
    Experiment,
    Judgement,
    Key,
    Readings,
    Size,
    judged,
    pick,
)
from resstream.train.experiments.registry import register
from resstream.train.experiments.stacks import SMALL, random_tokens, sites_of, transformer

_FLOOR = 1e-12
"""Below this the difference between tokens is rounding (the runs are in float64)."""


def token_difference(stream: Float[Tensor, "batch pos d_model"]) -> float:
    """``||x - mean over tokens|| / ||x||``: 0 where all tokens are the same vector."""
    centred = stream - stream.mean(dim=1, keepdim=True)
    return float(centred.norm() / stream.norm())


def _stack(n_layers: int, *, causal: bool) -> list[Attention]:
    config = replace(SMALL, n_layers=n_layers, causal=causal, positions=NoPositions())
    made = [Attention(config, layer) for layer in range(n_layers)]
    for attention in made:
        for module in attention.modules():
            initialise(module, config)
    return [attention.double() for attention in made]


def _differences(n_layers: int, *, causal: bool, skip: bool, norm: bool) -> list[float]:
    """Difference between tokens after each layer of attention alone."""
    stream = torch.randn(2, 16, SMALL.d_model, dtype=torch.float64)
    found: list[float] = []
    with torch.no_grad():
        for attention in _stack(n_layers, causal=causal):
            write = attention(F.layer_norm(stream, stream.shape[-1:]) if norm else stream)
            stream = stream + write if skip else write
            found.append(token_difference(stream))
    return found


def _full(n_layers: int) -> list[float]:
    """The same in whole Pre-LN blocks, with MLPs."""
    model = transformer(n_layers=n_layers, causal=False, positions=NoPositions()).double()
    streams = sites_of(model, random_tokens(2, 16), "hook_resid_post").values()
    return [token_difference(stream) for stream in streams]


def _measure_collapse(size: Size) -> dict[Key, float]:
    n_layers = pick(size, tiny=3, quick=12, full=24)
    lines = {
        "attention alone": _differences(n_layers, causal=False, skip=False, norm=False),
        "attention, norm": _differences(n_layers, causal=False, skip=False, norm=True),
        "attention, skip": _differences(n_layers, causal=False, skip=True, norm=False),
        "Pre-LN blocks": _full(n_layers),
    }
    return {
        (name, float(layer + 1)): max(value, _FLOOR)
        for name, values in lines.items()
        for layer, value in enumerate(values)
    }


def _growing_factor(readings: Readings, name: str) -> float:
    """How many times more a layer takes (in logarithms) than the layer before, before the floor."""
    logs = [math.log(value) for value in readings.line(name) if value > 10 * _FLOOR]
    steps = [before - after for before, after in pairwise(logs)]
    return steps[-1] / steps[0] if len(steps) > 1 and steps[0] > 0 else math.nan


def judge_collapse(readings: Readings) -> Judgement:
    """Each layer takes a growing power of the difference; skip and MLP keep most of it."""
    factor = _growing_factor(readings, "attention alone")
    last = readings.places("attention alone")[-1]
    skip, whole = readings.low("attention, skip", last), readings.low("Pre-LN blocks", last)
    at_floor = readings.high("attention alone", last) <= 10 * _FLOOR
    return judged(
        at_floor and factor > 1.5 and min(skip, whole) > 0.05,
        f"without skip the tokens become one vector: below {10 * _FLOOR:.0e} by layer {last:.0f}, "
        f"and a layer takes {factor:.2g} times as many decades as the one before. With a skip "
        f"{skip:.2g} of the difference is left after {last:.0f} layers, in whole Pre-LN blocks "
        f"{whole:.2g}",
    )


_COLLAPSE_CHART = Chart(
    value_title="difference between tokens, ||x - mean|| / ||x||",
    at_title="layer",
    log_value=True,
)
register(
    Experiment(
        name="rank-collapse",
        title="Does attention alone make all tokens one vector?",
        claim="Pure attention loses rank doubly exponentially with depth; skips and MLPs stop it.",
        source="Dong et al. (2021), Attention is not all you need, theorem 2.2 and corollary 2.3",
        rows=(57,),
        measure=_measure_collapse,
        judge=judge_collapse,
        chart=_COLLAPSE_CHART,
        method="Stacks of 4-head attention, width 64, 16 random tokens, float64, untrained.",
        seeds=5,
    )
)


def _measure_causal(size: Size) -> dict[Key, float]:
    n_layers = pick(size, tiny=3, quick=24, full=48)
    causal = _differences(n_layers, causal=True, skip=False, norm=False)
    return {("attention alone, causal", float(n + 1)): value for n, value in enumerate(causal)}


def judge_causal(readings: Readings) -> Judgement:
    """Doubly exponential would mean that the floor is reached within a few layers."""
    name = "attention alone, causal"
    last = readings.places(name)[-1]
    left = readings.value(name, last)
    kept = (left / readings.value(name, 1.0)) ** (1 / max(last - 1, 1))
    return judged(
        readings.high(name, last) <= 10 * _FLOOR,
        f"under a causal mask {left:.2g} of the difference is left after {last:.0f} layers, where "
        "without mask nothing is left after a few: the first token sees itself alone and keeps its "
        f"vector, so each layer leaves the same share of the others' difference ({kept:.2g} here). "
        "Do not expect the cubic rate in a decoder",
    )


register(
    Experiment(
        name="rank-collapse-causal",
        title="Does the same happen under a causal mask?",
        claim="Pure attention loses rank doubly exponentially with depth, in any transformer.",
        source="Dong et al. (2021), whose theorem is for attention without mask",
        rows=(57, 18),
        measure=_measure_causal,
        judge=judge_causal,
        chart=_COLLAPSE_CHART,
        method="The stack of `rank-collapse` with a causal mask, no skip, no norm.",
        seeds=5,
    )
)
