"""What does the identity path guarantee for gradients?"""

import torch
from torch import Tensor, nn
from torch.autograd.functional import jacobian

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

_EXACT = 1e-12


def _branch(width: int) -> nn.Sequential:
    layers = (nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU())
    return nn.Sequential(*layers, nn.Linear(4 * width, width)).double()


def _identity_error(width: int) -> float:
    """Largest difference between the Jacobian of a block and I plus that of its branch."""
    branch, x = _branch(width), torch.randn(width, dtype=torch.float64)

    def block(stream: Tensor) -> Tensor:
        return stream + branch(stream)

    own, of_branch = jacobian(block, x), jacobian(branch, x)
    assert isinstance(own, Tensor)
    assert isinstance(of_branch, Tensor)
    return float((own - torch.eye(width, dtype=own.dtype) - of_branch).abs().max())


def _measure_identity(size: Size) -> dict[Key, float]:
    width = pick(size, tiny=4, quick=32, full=64)
    return {
        "largest error of J_block = I + J_F": _identity_error(width),
        "energy of the gradient, s^2 = 0.25 (1 + s^2 expected)": _energy(0.25, width),
        "energy of the gradient, s^2 = 1 (1 + s^2 expected)": _energy(1.0, width),
    }


def _energy(variance: float, width: int) -> float:
    """``||(I + J)^T g||^2 / ||g||^2`` for J with independent rows of that variance."""
    found = [
        ((torch.eye(width) + torch.randn(width, width) * (variance / width) ** 0.5).T @ g).square()
        for g in torch.nn.functional.normalize(torch.randn(400, width), dim=1)
    ]
    return float(torch.stack(found).sum(1).mean())


def judge_identity(readings: Readings) -> Judgement:
    """Exact to rounding in float64."""
    error = readings.high("largest error of J_block = I + J_F")
    energy = readings.value("energy of the gradient, s^2 = 0.25 (1 + s^2 expected)")
    return judged(
        error < _EXACT,
        f"the Jacobian of a block is I + J_F to {error:.1g} in float64. For a branch whose "
        f"Jacobian is independent of the gradient the energy grows to {energy:.3g} of itself where "
        "1 + s^2 = 1.25: that much is true of the average, and of nothing else",
    )


register(
    Experiment(
        name="gradient-identity",
        title="Is the gradient passed on by I + J?",
        claim="y = x + F(x) gives dL/dx = (I + J_F)^T dL/dy: the gradient has a path of its own.",
        source="He et al. (2016), Identity Mappings in Deep Residual Networks, equation 5",
        rows=(3,),
        measure=_measure_identity,
        judge=judge_identity,
        chart=Chart(
            value_title="energy of the gradient, after over before",
            quantities=(
                "energy of the gradient, s^2 = 0.25 (1 + s^2 expected)",
                "energy of the gradient, s^2 = 1 (1 + s^2 expected)",
            ),
        ),
        method="Jacobian of one Pre-LN MLP block by autograd in float64; random J otherwise.",
        seeds=5,
    )
)


def _smallest(jacobian: Tensor) -> float:
    """Least gain of a gradient: the smallest singular value of I + J."""
    return float(torch.linalg.svdvals(torch.eye(len(jacobian)) + jacobian)[-1])


def _measure_least(size: Size) -> dict[Key, float]:
    width = pick(size, tiny=4, quick=16, full=64)
    drawn = torch.randn(width, width) / width**0.5
    small = 0.5 * drawn / torch.linalg.matrix_norm(drawn, 2)
    return {
        "least gain, J = -I": _smallest(-torch.eye(width)),
        "least gain, J = -0.5 I": _smallest(-0.5 * torch.eye(width)),
        "least gain, J random N(0, 1/d)": _smallest(drawn),
        "least gain, J random with ||J|| = 0.5": _smallest(small),
        "true bound 1 - ||J|| there": 0.5,
    }


def judge_least(readings: Readings) -> Judgement:
    """At least one, in the worst direction, for every J?"""
    names = ("J = -I", "J = -0.5 I", "J random N(0, 1/d)", "J random with ||J|| = 0.5")
    gains = {name: readings.low(f"least gain, {name}") for name in names}
    bound_holds = gains["J random with ||J|| = 0.5"] >= 0.5 - 1e-6
    return judged(
        min(gains.values()) >= 1.0,
        f"the least gain is {gains['J = -I']:.2g} for J = -I and "
        f"{gains['J random N(0, 1/d)']:.2g} for a random J. What is true is "
        f"sigma_min(I + J) >= 1 - ||J||, which says something only where ||J|| < 1 "
        f"(here it {'held' if bound_holds else 'FAILED'}: "
        f"{gains['J random with ||J|| = 0.5']:.2g} >= 0.5)",
    )


register(
    Experiment(
        name="gradient-at-least-one",
        title="Does the identity path keep every gradient at least as large?",
        claim="The identity term guarantees that the gradient comes back at least times 1.",
        source="Tutorials on residual connections; the bound after He et al. (2016), section 2",
        rows=(3,),
        measure=_measure_least,
        judge=judge_least,
        chart=Chart(value_title="smallest singular value of I + J (claimed: at least 1)"),
        method="Singular values of I + J for chosen and for random J.",
        seeds=5,
    )
)
