"""Does a residual net train more like a linear system?  Its tangent kernel over width."""

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float
from torch import Tensor, nn

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
from resstream.train.experiments.tasks import train


def tangent_kernel(model: nn.Module, inputs: Tensor) -> Float[Tensor, "row row"]:
    """``<df(x_i)/dtheta, df(x_j)/dtheta>`` of a net with one output."""
    rows: list[Tensor] = []
    for output in model(inputs).flatten():
        gradients = torch.autograd.grad(output, list(model.parameters()), retain_graph=True)
        rows.append(torch.cat([gradient.flatten() for gradient in gradients]))
    stacked = torch.stack(rows).double()
    return stacked @ stacked.T


_RULES = {"plain": "none", "residual": "plain", "residual / sqrt(L)": "depth_mup"}
"""Name of a net -> residual rule; all have a norm before the branch."""


def _measure(size: Size) -> dict[Key, float]:
    depth, n_steps = pick(size, tiny=(2, 2), quick=(8, 100), full=(12, 400))
    n_rows = pick(size, tiny=4, quick=24, full=32)
    inputs, targets = torch.randn(n_rows, 16), torch.randn(n_rows, 1)
    found: dict[Key, float] = {}
    for width in pick(size, tiny=(4, 8), quick=(32, 128), full=(32, 128, 512)):
        for name, rule in _RULES.items():
            config = MlpNetConfig(
                n_layers=depth,
                d_model=width,
                d_in=16,
                d_out=1,
                rule=parse_rule(rule),
                placement="pre",
            )
            model = ResidualMlp(config)
            before = tangent_kernel(model, inputs)
            losses = _descend(model, inputs, targets, n_steps)
            change = (tangent_kernel(model, inputs) - before).norm() / before.norm()
            found[(f"{name}: change of the kernel", width)] = float(change)
            found[(f"{name}: loss reached / loss at the start", width)] = losses[-1] / losses[0]
            found[(f"{name}: condition of the kernel", width)] = float(torch.linalg.cond(before))
    return found


def _descend(model: nn.Module, inputs: Tensor, targets: Tensor, n_steps: int) -> list[float]:
    return train(model, lambda: F.mse_loss(model(inputs), targets), n_steps=n_steps, rate=1e-4)


def judge_linearity(readings: Readings) -> Judgement:
    """Closer to linear: a kernel that changes less, where all nets have learned the targets."""
    name = "{}: change of the kernel"
    widths = readings.places(name.format("plain"))
    plain = readings.low(name.format("plain"), widths[-1])
    calmer = all(
        readings.high(name.format(rule), widths[-1]) < plain for rule in _RULES if rule != "plain"
    )
    changes = ", ".join(
        f"{rule} {readings.value(name.format(rule), widths[0]):.2g} to "
        f"{readings.value(name.format(rule), widths[-1]):.2g}"
        for rule in _RULES
    )
    conditions = ", ".join(
        f"{rule} {readings.value(f'{rule}: condition of the kernel', widths[0]):.2g}"
        for rule in _RULES
    )
    return judged(
        calmer,
        f"change of the tangent kernel in training, width {widths[0]:.0f} to {widths[-1]:.0f}: "
        f"{changes}. Width calms every net, as theory has it; the skip "
        f"{'does too' if calmer else 'does not for sure'}, and how much depends on the scale of "
        f"the branches. Condition of the kernel at the start, width {widths[0]:.0f}: {conditions}. "
        "The limit of width, of which the claim speaks, is far from here",
    )


register(
    Experiment(
        name="tangent-kernel",
        title="Do residuals bring training closer to a linear system?",
        claim="In the view of the neural tangent kernel, residuals make training closer to linear.",
        source="Tutorials; Huang et al. (2020) and Tirer et al. (2020) on kernels of residual nets",
        rows=(6,),
        measure=_measure,
        judge=judge_linearity,
        chart=Chart(
            value_title="relative change of the kernel",
            at_title="width",
            log_value=True,
            log_at=True,
            quantities=tuple(f"{name}: change of the kernel" for name in _RULES),
        ),
        method="Empirical tangent kernel of 8-block nets with one output, around training.",
    )
)
