"""Which rules keep signal and gradient alive at depths of up to 1,000, and train there?"""

import math
from typing import Any

import torch
from torch import nn

from resstream.nn.mlp_net import ResidualMlp
from resstream.train.experiments.claims.degradation import net
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
from resstream.train.experiments.stacks import random_tokens, transformer
from resstream.train.experiments.tasks import fit, gradient_norms, regression, watched

_NETS: dict[str, dict[str, Any]] = {
    "ReZero": {"rule": "rezero"},
    "SkipInit": {"rule": "skipinit"},
    "Fixup": {"rule": "fixup"},
    "LayerScale": {"rule": {"kind": "layer_scale", "init": None}},
    "DeepNorm": {"rule": "deepnorm"},
}
_STACKS: dict[str, dict[str, Any]] = {
    "T-Fixup (transformer)": {"rule": "tfixup", "init": None},
    "DeepNorm (transformer)": {"rule": "deepnorm", "init": None},
    "ReZero (transformer)": {"rule": "rezero", "init": None},
}
_CONTROLS: dict[str, dict[str, Any]] = {
    "plain, no skip": {"rule": "none", "placement": "none"},
    "skip, no norm, no scale": {"rule": "plain", "placement": "none"},
}
_BAND = 100.0
"""First gradient over last may be off by this factor either way and still count as kept."""


def _kept(model: nn.Module, inputs: torch.Tensor) -> float:
    """Gradient at the start of the stream over that at its end; infinite if not finite."""
    with watched(model, "hook_resid_pre", "hook_resid_post") as seen:
        model(inputs)
        last = list(seen.values())[-1]  # not the output: Fixup's output matrix starts at zero
        (last * torch.randn_like(last)).sum().backward()
    norms = gradient_norms(seen)
    finite = all(math.isfinite(norm) for norm in norms) and bool(last.isfinite().all())
    return norms[0] / norms[-1] if finite and norms[-1] > 0 else math.inf


def _measure_signal(size: Size) -> dict[Key, float]:
    depths = pick(size, tiny=(2, 4), quick=(10, 100, 1000), full=(10, 100, 300, 1000))
    found: dict[Key, float] = {}
    for depth in depths:
        for name, config in (_NETS | _CONTROLS).items():
            found[(name, depth)] = _kept(net(depth, **config), torch.randn(8, 16))
        for name, config in _STACKS.items():
            model = transformer(n_layers=depth, d_model=16, n_heads=2, **config)
            found[(name, depth)] = _kept(model, random_tokens(1, 8))
    return found


def _is_kept(readings: Readings, name: str, depth: float) -> bool:
    low, high = readings.low(name, depth), readings.high(name, depth)
    return low > 1 / _BAND and high < _BAND


def judge_signal(readings: Readings) -> Judgement:
    """All published rules keep the gradient within the band at the greatest depth."""
    rules = (*_NETS, *_STACKS)
    deepest = readings.places(rules[0])[-1]
    lost = [name for name in rules if not _is_kept(readings, name, deepest)]
    said = ", ".join(f"{name} {readings.value(name, deepest):.2g}" for name in rules)
    control = ", ".join(f"{name} {readings.value(name, deepest):.2g}" for name in _CONTROLS)
    return judged(
        not lost,
        f"gradient at the start of the stream over that at its end, {deepest:.0f} blocks: {said}; "
        f"for comparison {control}"
        + (f". Outside of 1/{_BAND:.0f} to {_BAND:.0f}: {', '.join(lost)}" if lost else ""),
    )


register(
    Experiment(
        name="a-thousand-layers",
        title="Do the rules for depth keep the gradient through 1,000 blocks?",
        claim="ReZero, SkipInit, Fixup, T-Fixup, LayerScale and DeepNorm reach 1,000 layers.",
        source="Bachlechner (2020); De and Smith (2020); Zhang (2019); Huang (2020); Touvron "
        "(2021); Wang (2022)",
        rows=(23, 24, 25, 26, 27, 29, 56),
        measure=_measure_signal,
        judge=judge_signal,
        chart=Chart(
            value_title="gradient at the start / at the end of the stream",
            at_title="blocks",
            log_value=True,
            log_at=True,
            context=tuple(_CONTROLS),
        ),
        method="MLP nets of width 32, transformers of width 16, each rule with its own "
        "initialisation, float32, one forward and backward pass.",
        seeds=2,
    )
)


def _measure_training(size: Size) -> dict[Key, float]:
    depth = pick(size, tiny=3, quick=150, full=500)
    n_steps = pick(size, tiny=2, quick=30, full=100)
    task = regression(pick(size, tiny=16, quick=128, full=256))
    found: dict[Key, float] = {"depth": depth}
    for name, config in (_NETS | _CONTROLS | {"Pre-LN": {"rule": "plain"}}).items():
        found[name] = fit(net(depth, **config), task, n_steps=n_steps)
    return found


def judge_training(readings: Readings) -> Judgement:
    """Every rule gets clearly below guessing, the controls do not."""
    losses = {name: readings.value(name) for name in _NETS}
    slow = [name for name in _NETS if readings.high(name) > 0.7]
    controls = ", ".join(f"{name} {readings.value(name):.2g}" for name in _CONTROLS)
    return judged(
        not slow,
        f"training loss at {readings.value('depth'):.0f} layers (guessing is 1): "
        + ", ".join(f"{name} {loss:.2g}" for name, loss in losses.items())
        + f", Pre-LN {readings.value('Pre-LN'):.2g}; {controls}"
        + (f". Not below 0.7: {', '.join(slow)}" if slow else ""),
    )


register(
    Experiment(
        name="training-very-deep",
        title="Do they also train there?",
        claim="ReZero, SkipInit, Fixup, LayerScale and DeepNorm train nets that plain ones can't.",
        source="Bachlechner (2020); De and Smith (2020); Zhang (2019); Touvron (2021); Wang (2022)",
        rows=(23, 24, 25, 27, 29, 56),
        measure=_measure_training,
        judge=judge_training,
        chart=Chart(
            value_title="training loss after the last step (guessing is 1)",
            log_value=True,
            quantities=(*_NETS, "Pre-LN", *_CONTROLS),
        ),
        method="ReLU nets of width 32 fitted to a random teacher by full-batch Adam at 1e-3.",
        seeds=2,
    )
)


def _identity_error(model: ResidualMlp) -> float:
    """How far the stream is from being handed on unchanged."""
    with watched(model, "hook_resid_pre", "hook_resid_post") as seen, torch.no_grad():
        model(torch.randn(8, 16))
    values = list(seen.values())
    return float((values[-1] - values[0]).norm() / values[0].norm())


def _measure_start(size: Size) -> dict[Key, float]:
    depth = pick(size, tiny=2, quick=12, full=48)
    model = net(depth, rule="rezero")
    model(torch.randn(8, 16)).square().mean().backward()
    gates, inside = [], []
    for name, parameter in model.named_parameters():
        if ".scales." in name:
            gates.append(parameter.grad.abs().max() if parameter.grad is not None else 0.0)
        elif name.startswith("blocks."):
            inside.append(parameter.grad.abs().max() if parameter.grad is not None else 0.0)
    post = nn.LayerNorm(16)
    x = 3 * torch.randn(64, 16) + 1
    return {
        "change of the stream, ReZero": _identity_error(model),
        "largest gradient of a gate": float(max(gates)),
        "largest gradient inside a branch": float(max(inside)),
        "change of the stream, gate 0 but Post-LN": float((post(x).detach() - x).norm() / x.norm()),
    }


def judge_start(readings: Readings) -> Judgement:
    """Exactly the identity, and only the gates learn in the first step."""
    change = readings.high("change of the stream, ReZero")
    inside = readings.high("largest gradient inside a branch")
    gate = readings.low("largest gradient of a gate")
    post = readings.value("change of the stream, gate 0 but Post-LN")
    return judged(
        change == 0.0 and inside == 0.0 and gate > 0.0,
        f"the stream changes by {change:g}; the gradient is {inside:g} inside the branches and up "
        f"to {gate:.2g} at the gates, so in the first step the gates alone learn. With the norm "
        f"after the addition a gate of 0 is no identity: the stream changes by {post:.0%}",
    )


register(
    Experiment(
        name="rezero-start",
        title="Does ReZero start as the identity, and what learns first?",
        claim="With alpha = 0 every block is the identity at the start.",
        source="Bachlechner et al. (2020), ReZero is All You Need, equation 1",
        rows=(23,),
        measure=_measure_start,
        judge=judge_start,
        chart=Chart(value_title="relative change, or largest gradient"),
        method="An MLP net with ReZero after one backward pass; LayerNorm of x ~ N(1, 9).",
    )
)
