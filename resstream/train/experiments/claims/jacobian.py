"""What does a stack of blocks do to a gradient: singular values, and lengths of paths?"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.functional import jacobian, vjp

from resstream.nn.additive_rules import Plain
from resstream.nn.initialisation import DepthScaledNormal
from resstream.nn.mlp_net import MlpNetConfig, ResidualMlp
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
from resstream.train.experiments.stacks import transformer
from resstream.train.experiments.tasks import fit, regression, watched

RULES: dict[str, dict[str, Any]] = {
    "no skip": {"rule": "none", "placement": "pre"},
    "no skip, no norm": {"rule": "none", "placement": "none"},
    "Post-LN": {"rule": "plain", "placement": "post"},
    "Pre-LN": {"rule": "plain", "placement": "pre"},
    "GPT-2 scaling": {"rule": "plain", "init": DepthScaledNormal()},
    "Depth-muP": {"rule": "depth_mup"},
    "DeepNorm": {"rule": "deepnorm", "init": None},
    "LayerScale 1e-5": {"rule": "layer_scale"},
    "ReZero": {"rule": "rezero"},
}


def singular_values(n_layers: int, width: int, **config: Any) -> Float[Tensor, " d_model"]:
    """Of the Jacobian of one token's last stream to its first, largest first."""
    model = transformer(n_layers=n_layers, d_model=width, **config)

    def last(stream: Tensor) -> Tensor:
        for block in model.blocks:
            stream = block(stream[None, None] if stream.ndim == 1 else stream)
        return stream[0, 0]

    found = jacobian(last, torch.randn(width), vectorize=True)
    assert isinstance(found, Tensor)
    if not found.isfinite().all():
        return torch.full((width,), math.inf)
    return torch.linalg.svdvals(found.double())


def _measure_jacobian(size: Size) -> dict[Key, float]:
    n_layers, width = pick(size, tiny=(2, 8), quick=(48, 48), full=(96, 64))
    found: dict[Key, float] = {}
    for name, config in RULES.items():
        values = singular_values(n_layers, width, **config)
        found[f"{name}: median"] = float(values.median())
        found[f"{name}: largest"] = float(values[0])
        found[f"{name}: smallest"] = float(values[-1])
    return found


def judge_jacobian(readings: Readings) -> Judgement:
    """Vanishing or exploding without skip; of order 1 with a rule that keeps it."""
    median = {name: readings.value(f"{name}: median") for name in RULES}
    lost = [name for name in ("no skip", "no skip, no norm") if 1e-3 < median[name] < 1e3]
    kept = [name for name in ("Pre-LN", "LayerScale 1e-5", "ReZero", "DeepNorm")]
    said = ", ".join(f"{name} {value:.2g}" for name, value in median.items())
    return judged(
        not lost and all(0.1 < median[name] < 10 for name in kept),
        f"median singular value end to end: {said}. Post-LN has a skip and loses most directions "
        "too, so it is not the skip alone; and every LayerNorm on the stream has directions that "
        f"pass nothing (DeepNorm's smallest: {readings.value('DeepNorm: smallest'):.1g})",
    )


register(
    Experiment(
        name="jacobian-by-rule",
        title="What do dozens of Jacobians multiply to, by rule?",
        claim="Without skips the Jacobians of the layers multiply to nothing or beyond all bounds; "
        "with them the product stays of order 1.",
        source="Tutorials on residual connections; Bachlechner et al. (2020), figure 2",
        rows=(4,),
        measure=_measure_jacobian,
        judge=judge_jacobian,
        chart=Chart(
            value_title="singular value of the end-to-end Jacobian",
            log_value=True,
            quantities=tuple(
                f"{name}: {which}" for name in RULES for which in ("median", "largest")
            ),
        ),
        method="One token through 48 blocks of width 48 at initialisation, all directions.",
    )
)


class _Paths:
    """Gradients of a net along paths of a chosen length."""

    def __init__(self, model: ResidualMlp, inputs: Tensor, targets: Tensor) -> None:
        with watched(model, "hook_resid_pre", "hook_resid_post") as seen:
            (model(inputs) - targets).square().mean().backward()
        values = list(seen.values())
        last = values[-1].grad
        assert last is not None
        self.blocks = list(model.blocks)
        self.streams = [value.detach() for value in values[: len(self.blocks)]]
        if len(values) == 2 * len(self.blocks):
            self.streams = [value.detach() for value in values[::2]]
        self.end = last

    def size(self, through: list[int]) -> float:
        """Gradient that comes back through these branches, and past all others."""
        gradient = self.end
        for layer in sorted(through, reverse=True):
            stream, block = self.streams[layer], self.blocks[layer]
            _, pulled = vjp(lambda x, block=block: block(x) - x, stream, gradient)
            assert isinstance(pulled, Tensor)
            gradient = pulled
        return float(gradient.norm())


def _measure_paths(size: Size) -> dict[Key, float]:
    n_layers, n_drawn, n_steps = pick(size, tiny=(4, 2, 2), quick=(54, 12, 60), full=(54, 100, 400))
    task = regression(128)
    config = MlpNetConfig(n_layers=n_layers, d_model=32, d_in=16, d_out=4, rule=Plain())
    model = ResidualMlp(config)
    fit(model, task, n_steps=n_steps)
    paths = _Paths(model, task.inputs, task.targets)
    logs: dict[int, float] = {}
    for length in range(0, n_layers + 1, pick(size, tiny=2, quick=3, full=1)):
        drawn = [paths.size(torch.randperm(n_layers)[:length].tolist()) for _ in range(n_drawn)]
        mean = max(sum(drawn) / n_drawn, 1e-300)
        logs[length] = math.log(mean) + math.log(math.comb(n_layers, length))
    top = max(logs.values())
    share = {length: math.exp(value - top) for length, value in logs.items()}
    total = sum(share.values())
    found: dict[Key, float] = {
        ("share of the gradient", length): value / total for length, value in share.items()
    }
    mean_length = sum(length * value for length, value in share.items()) / total
    return found | {"mean length of a path, blocks": mean_length, "blocks": n_layers}


def judge_paths(readings: Readings) -> Judgement:
    """Most of the gradient comes along paths far shorter than half of the net."""
    n_layers, mean = readings.value("blocks"), readings.value("mean length of a path, blocks")
    return judged(
        readings.high("mean length of a path, blocks") < 0.35 * n_layers,
        f"of {n_layers:.0f} blocks a path of the gradient goes through {mean:.1f} on average, "
        f"where half of them ({n_layers / 2:.0f}) is what a random path goes through: each branch "
        "weakens what comes back through it, so long paths are many and weigh little. (The paper "
        "counts layers: 10 to 34 of 110, two in a block.)",
    )


register(
    Experiment(
        name="path-lengths",
        title="Does a deep residual net act as an ensemble of shallow paths?",
        claim="The gradient of a deep residual net comes along short paths.",
        source="Veit et al. (2016), Residual Networks Behave Like Ensembles, section 4.3",
        rows=(5,),
        measure=_measure_paths,
        judge=judge_paths,
        chart=Chart(
            value_title="share of the gradient",
            at_title="branches that the path goes through",
            quantities=("share of the gradient",),
        ),
        method="A trained Pre-LN MLP net of 54 blocks; gradients through k random branches and "
        "past the others, times the number of such paths.",
    )
)
