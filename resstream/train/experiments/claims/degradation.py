"""Do deeper plain nets train worse, and what of it does a residual connection take away?"""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from resstream.nn.conv_net import ConvNetConfig, ResidualConvNet
from resstream.nn.mlp_net import MlpNetConfig, ResidualMlp
from resstream.nn.rules import parse_rule
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
from resstream.train.experiments.tasks import fit, regression, train

_WIDTH = 32
_PLAIN, _RESIDUAL = "plain", "residual (Pre-LN)"


def net(n_layers: int, **config: Any) -> ResidualMlp:
    """An MLP net of the size of these experiments."""
    return ResidualMlp(MlpNetConfig(n_layers=n_layers, d_model=_WIDTH, d_in=16, d_out=4, **config))


KINDS: dict[str, dict[str, Any]] = {
    # ReLU behind every matrix, as its initialisation assumes where nothing else sets the size.
    _PLAIN: {"rule": "none", "placement": "none", "activation": "after_add"},
    "plain with norm": {"rule": "none", "placement": "pre"},
    _RESIDUAL: {"rule": "plain", "placement": "pre"},
    "SkipInit": {"rule": "skipinit"},
    "residual, no norm, no scale": {"rule": "plain", "placement": "none"},
}
"""Name of a net -> how it is made."""


def _blocks(n_matrices: int) -> int:
    """Blocks of two matrices in a net of so many, the first and the last stand alone."""
    return n_matrices // 2 - 1


def _measure(size: Size) -> dict[Key, float]:
    depths = pick(size, tiny=(4, 6), quick=(20, 56), full=(20, 56, 110))
    n_steps = pick(size, tiny=3, quick=150, full=300)
    task = regression(pick(size, tiny=16, quick=128, full=512))
    return {
        (name, depth): fit(net(_blocks(depth), **config), task, n_steps=n_steps)
        for name, config in KINDS.items()
        for depth in depths
    }


def judge_degradation(readings: Readings) -> Judgement:
    """Plain nets get worse from 20 to 56 layers on the training rows, residual ones do not."""
    shallow, deep = readings.places(_PLAIN)[:2]
    plain = [readings.value(_PLAIN, at) for at in (shallow, deep)]
    residual = [readings.value(_RESIDUAL, at) for at in (shallow, deep)]
    bare = readings.value("residual, no norm, no scale", deep)
    return judged(
        readings.low(_PLAIN, deep) > 3 * readings.high(_PLAIN, shallow)
        and readings.high(_RESIDUAL, deep) < 2 * readings.high(_RESIDUAL, shallow)
        and readings.high(_RESIDUAL, deep) < 0.2 * readings.low(_PLAIN, deep),
        f"training loss from {shallow:.0f} to {deep:.0f} layers: plain {plain[0]:.2g} to "
        f"{plain[1]:.2g} (guessing the mean is 1), residual {residual[0]:.2g} to "
        f"{residual[1]:.2g}. The skip alone is not enough: with neither norm nor scale it ends at "
        f"{bare:.2g}. That plain nets can't learn the identity is a conjecture, not shown by this",
    )


register(
    Experiment(
        name="degradation",
        title="Do plain nets of 56 layers train worse than of 20, and residual ones not?",
        claim="Deeper plain nets have a higher training error; residual nets do not.",
        source="He et al. (2015), Deep Residual Learning, figures 1 and 6",
        rows=(1, 2, 33, 56),
        measure=_measure,
        judge=judge_degradation,
        chart=Chart(
            value_title="training loss after the last step",
            at_title="layers",
            log_value=True,
            context=("residual, no norm, no scale",),
        ),
        method="ReLU nets of width 32 fitted to a random teacher by full-batch Adam at 1e-3.",
        seeds=2,
    )
)


def _images(n_images: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ten classes of 8 x 8 images: a class is a random pattern, shifted and with noise."""
    patterns, labels = torch.randn(10, 3, 8, 8), torch.randint(10, (n_images,))
    shifts = torch.randint(8, (n_images,)).tolist()
    rolled = [
        torch.roll(patterns[label], shift, -1) for label, shift in zip(labels, shifts, strict=True)
    ]
    return torch.stack(rolled) + 0.5 * torch.randn(n_images, 3, 8, 8), labels


def _fit_images(module: nn.Module, n_images: int, n_steps: int) -> float:
    images, labels = _images(n_images)
    losses = train(module.train(), lambda: F.cross_entropy(module(images), labels), n_steps=n_steps)
    return sum(losses[-3:]) / 3


def _measure_images(size: Size) -> dict[Key, float]:
    stages = pick(size, tiny=(1,), quick=(3, 9), full=(3, 9, 18))
    n_steps, n_images = pick(size, tiny=(2, 8), quick=(25, 64), full=(150, 256))
    channels = pick(size, tiny=(4, 4, 8), quick=(8, 16, 32), full=(16, 32, 64))
    found: dict[Key, float] = {}
    for name, rule in ((_PLAIN, "none"), ("residual", "plain")):
        for each in stages:
            config = ConvNetConfig(blocks_per_stage=each, channels=channels, rule=parse_rule(rule))
            found[(name, 6 * each + 2)] = _fit_images(ResidualConvNet(config), n_images, n_steps)
    return found


def judge_images(readings: Readings) -> Judgement:
    """Plain worse at 56 than at 20, residual better than plain at 56."""
    shallow, deep = readings.places(_PLAIN)[0], readings.places(_PLAIN)[-1]
    plain = [readings.value(_PLAIN, at) for at in (shallow, deep)]
    residual = [readings.value("residual", at) for at in (shallow, deep)]
    return judged(
        plain[1] > 1.2 * plain[0] and residual[1] < 0.7 * plain[1],
        f"training loss from {shallow:.0f} to {deep:.0f} layers: plain {plain[0]:.2g} to "
        f"{plain[1]:.2g}, residual {residual[0]:.2g} to {residual[1]:.2g} (nats; chance is 2.3)",
    )


register(
    Experiment(
        name="degradation-convolutional",
        title="And in convolutional nets with batch norm, as the paper had them?",
        claim="A plain convolutional net of 56 layers trains worse than one of 20.",
        source="He et al. (2015), Deep Residual Learning, section 4.2",
        rows=(1,),
        measure=_measure_images,
        judge=judge_images,
        chart=Chart(value_title="training loss, nats", at_title="layers"),
        method="Nets of 6n + 2 layers as in the paper, fewer channels, 8 x 8 images made here.",
        seeds=2,
    )
)
