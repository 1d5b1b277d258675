"""Which constants of the initialisation are right: those of Fixup, T-Fixup, DeepNorm?"""

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from resstream.nn.constants import deepnorm_constants, fixup_gain
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
from resstream.train.experiments.stacks import (
    log_slope,
    next_token_loss,
    random_tokens,
    rms,
    sites_of,
    transformer,
)


def _branch_update(n_branches: int, gain: float, n_matrices: int, width: int) -> float:
    """Change of a stack's output by one SGD step of rate 1 on all last layers (which start at 0).

    Branches are ``m`` linear layers with ReLU; all but the last have He's deviation times `gain`.
    """
    x = torch.randn(64, width)
    change = torch.zeros_like(x)
    for _ in range(n_branches):
        hidden = x
        for _ in range(n_matrices - 1):
            weight = torch.randn(width, width) * gain * math.sqrt(2 / width)
            hidden = F.relu(hidden @ weight)
        gradient = hidden.T @ x / len(x)  # of <output, x>: any fixed direction will do
        change += hidden @ gradient
    return rms(change) / rms(x) / width


def _measure_fixup(size: Size) -> dict[Key, float]:
    counts, width = pick(
        size, tiny=((2, 4), 8), quick=((4, 16, 64, 256), 64), full=((4, 16, 64, 256, 1024), 64)
    )
    found: dict[Key, float] = {}
    for count in counts:
        for m in (2, 3):
            right = fixup_gain(count, m)
            found[(f"L^(-1/(2m-2)), m = {m}", count)] = _branch_update(count, right, m, width)
        found[("1/sqrt(L) for m = 3", count)] = _branch_update(count, count**-0.5, 3, width)
        found[("L^(+1/(2m-2)), m = 2", count)] = _branch_update(count, count**0.5, 2, width)
        found[("no factor, m = 2", count)] = _branch_update(count, 1.0, 2, width)
    return found


def _powers(readings: Readings) -> dict[str, float]:
    names = dict.fromkeys(item.quantity for item in readings.measured)
    return {name: log_slope(readings.places(name), readings.line(name)) for name in names}


def judge_fixup(readings: Readings) -> Judgement:
    """The first update must not depend on depth, for every m."""
    powers = _powers(readings)
    right = [powers[f"L^(-1/(2m-2)), m = {m}"] for m in (2, 3)]
    return judged(
        all(abs(power) < 0.15 for power in right) and powers["no factor, m = 2"] > 0.8,
        "the first update of the output goes with the number of branches as "
        + ", ".join(f"L^{power:.2f} ({name})" for name, power in powers.items())
        + ": the exponent -1/(2m-2) makes it independent of depth; without the minus sign, as some "
        "copies have it, it grows as L^2, and 1/sqrt(L) is right for m = 2 alone",
    )


register(
    Experiment(
        name="fixup-exponent",
        title="Which factor makes Fixup's first update independent of depth?",
        claim="Fixup multiplies all but the last layer of a branch by L^(-1/(2m-2)).",
        source="Zhang et al. (2019), Fixup Initialization, section 3",
        rows=(25,),
        measure=_measure_fixup,
        judge=judge_fixup,
        chart=Chart(
            value_title="first update of the output (relative)",
            at_title="branches L",
            log_value=True,
            log_at=True,
        ),
        method="Branches of m matrices with ReLU, the last zero; one gradient step on those.",
    )
)


def _measure_twice(size: Size) -> dict[Key, float]:
    width = pick(size, tiny=32, quick=768, full=1024)
    linear = nn.Linear(width, width)
    nn.init.xavier_normal_(linear.weight, gain=math.sqrt(2))
    first = rms(linear.weight.detach())
    nn.init.normal_(linear.weight, std=0.02)
    return {
        "deviation after xavier, gain sqrt(2)": first,
        "deviation after normal_(0.02) on top": rms(linear.weight.detach()),
    }


def judge_twice(readings: Readings) -> Judgement:
    """The second call has to leave something of the first."""
    first = readings.value("deviation after xavier, gain sqrt(2)")
    second = readings.value("deviation after normal_(0.02) on top")
    return judged(
        abs(second / 0.02 - 1) > 0.1,
        f"the deviation is {first:.3g} after the first call and {second:.3g} after the second, "
        "which overwrites it; and neither has a factor for depth",
    )


register(
    Experiment(
        name="initialised-twice",
        title="Do two initialisations of one matrix add up?",
        claim="Residual layers: xavier_normal_ with gain sqrt(2), then normal_(std=0.02).",
        source="Tutorials on residual connections",
        rows=(34,),
        measure=_measure_twice,
        judge=judge_twice,
        chart=Chart(value_title="standard deviation of the matrix"),
        method="One linear layer initialised by both calls.",
    )
)

_TFIXUP: dict[str, dict[str, Any]] = {
    "T-Fixup": {"rule": "tfixup", "init": None},
    "Xavier, no norm": {"rule": "plain", "placement": "none"},
    "Post-LN": {"rule": "plain", "placement": "post"},
}


def _first_update(model: nn.Module, tokens: Tensor) -> float:
    """Change of the output by one gradient step, per rate, relative to the output.

    The rate is small enough that the change is linear in it.
    """
    rate = 1e-4
    model = model.double()
    with torch.no_grad():
        before = model(tokens)
    next_token_loss(model, tokens).backward()  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= rate * parameter.grad
        return rms(model(tokens) - before) / rms(before) / rate


def _measure_tfixup(size: Size) -> dict[Key, float]:
    depths = pick(size, tiny=(2, 4), quick=(6, 24, 96), full=(6, 24, 96, 200))
    return {
        (name, depth): _first_update(transformer(n_layers=depth, **config), random_tokens(2, 17))
        for depth in depths
        for name, config in _TFIXUP.items()
    }


def judge_tfixup(readings: Readings) -> Judgement:
    """The update of the output has to stay of one size over depth, without a norm."""
    powers = _powers(readings)
    shallow, *_, deepest = readings.places("T-Fixup")
    update = {name: readings.value(name, deepest) for name in _TFIXUP}
    grown = update["T-Fixup"] / readings.value("T-Fixup", shallow)
    return judged(
        abs(powers["T-Fixup"]) < 0.35 and not update["Xavier, no norm"] < 1e3 * update["T-Fixup"],
        f"from {shallow:.0f} to {deepest:.0f} blocks the change of the output by a gradient step "
        f"of rate 1 becomes {grown:.2g} times itself with T-Fixup (depth^{powers['T-Fixup']:.2f}), "
        f"to {update['T-Fixup']:.2g} of the output; the same net at Xavier is at "
        f"{update['Xavier, no norm']:.2g}, Post-LN at {update['Post-LN']:.2g}. The factor depends "
        "on depth alone, not on width",
    )


register(
    Experiment(
        name="t-fixup-update",
        title="Does T-Fixup bound the first update without norm and warm-up?",
        claim="T-Fixup keeps the first updates bounded at any depth, without norm or warm-up.",
        source="Huang et al. (2020), Improving Transformer Optimization Through Better "
        "Initialization; the constants are for encoders and decoders of translation",
        rows=(26,),
        measure=_measure_tfixup,
        judge=judge_tfixup,
        chart=Chart(
            value_title="change of the output by a gradient step, per rate (relative)",
            at_title="blocks",
            log_value=True,
            log_at=True,
        ),
        method="Transformers of width 64 at initialisation; one small gradient step, in float64.",
    )
)

_DEEPNORM = ("Post-LN", "up by L^a (as often copied)", "DeepNorm")


def _deepnorm(name: str, depth: int) -> tuple[float, dict[str, Any]]:
    """Alpha and config of a Post-LN stack: as it is, with the sign lost, and as published."""
    alpha, beta = deepnorm_constants("decoder_only", n_decoder=depth)
    if name == "Post-LN":
        alpha, beta = 1.0, 1.0
    elif name != "DeepNorm":
        beta = alpha
    return alpha, {"rule": {"kind": "deepnorm", "alpha": alpha, "beta": beta}, "init": None}


def _measure_deepnorm(size: Size) -> dict[Key, float]:
    depths = pick(size, tiny=(2, 4), quick=(6, 24, 96), full=(6, 24, 96, 192))
    found: dict[Key, float] = {}
    for depth in depths:
        for name in _DEEPNORM:
            alpha, config = _deepnorm(name, depth)
            model, tokens = transformer(n_layers=depth, **config), random_tokens(2, 17)
            seen = sites_of(model, tokens, "hook_mlp_out", "hook_resid_mid")
            write, stream = seen["blocks.0.hook_mlp_out"], seen["blocks.0.hook_resid_mid"]
            found[(f"{name}: write / skip", depth)] = rms(write) / (alpha * rms(stream))
            next_token_loss(model, tokens).backward()
            first, last = (
                model.get_parameter(f"blocks.{layer}.mlp.down_proj.weight").grad
                for layer in (0, depth - 1)
            )
            assert first is not None
            assert last is not None
            ratio = float(first.norm() / last.norm())
            found[(f"{name}: first / last gradient", depth)] = ratio
    return found | {"error of LN(alpha x + F) = LN(x + F / alpha)": _form_error()}


def _form_error() -> float:
    """The two forms, the second with eps / alpha^2, in float64."""
    x, branch = torch.randn(2, 64, 32, dtype=torch.float64)
    alpha, eps = 3.0, 1e-5
    skip = F.layer_norm(alpha * x + branch, (32,), eps=eps)
    other = F.layer_norm(x + branch / alpha, (32,), eps=eps / alpha**2)
    return float((skip - other).abs().max())


def judge_deepnorm(readings: Readings) -> Judgement:
    """Claimed: branch divided by L^a, weights multiplied by L^a."""
    deepest = readings.places("DeepNorm: write / skip")[-1]
    write = {name: readings.value(f"{name}: write / skip", deepest) for name in _DEEPNORM}
    ends = {name: readings.value(f"{name}: first / last gradient", deepest) for name in _DEEPNORM}
    copied = _DEEPNORM[1]
    return judged(
        write[copied] < write["Post-LN"] and ends[copied] > 0.2,
        f"the sign of the exponent is wrong: at {deepest:.0f} blocks a write is "
        f"{write[copied]:.2g} of the skip with weights scaled up, {write['Post-LN']:.2g} in "
        f"Post-LN and {write['DeepNorm']:.2g} with DeepNorm's beta = (8M)^(-1/4); the first "
        f"block's gradient is {ends[copied]:.1g}, {ends['Post-LN']:.2g} and "
        f"{ends['DeepNorm']:.2g} of the last's. The form is right: scaling the stream up or the "
        "branch down is one function, if eps is scaled too (difference "
        f"{readings.high('error of LN(alpha x + F) = LN(x + F / alpha)'):.0e})",
    )


register(
    Experiment(
        name="deepnorm-constants",
        title="Does DeepNorm scale the weights up or down?",
        claim="DeepNorm: branch times 1/L^a, and weights initialised larger by L^a.",
        source="Tutorials; Wang et al. (2022), DeepNet, figure 2, has beta = (8M)^(-1/4)",
        rows=(29,),
        measure=_measure_deepnorm,
        judge=judge_deepnorm,
        chart=Chart(
            value_title="write / skip in the first MLP",
            at_title="blocks",
            log_value=True,
            log_at=True,
            quantities=tuple(f"{name}: write / skip" for name in _DEEPNORM),
        ),
        method="Post-LN transformers of width 64 whose matrices have the gain in question.",
    )
)
