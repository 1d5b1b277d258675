"""Is a correction easier to learn than the map, and what do skips and warm-up do in training?"""

import math
from typing import Any

import torch
from torch import nn

from resstream.train.experiments.claims.degradation import KINDS
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
from resstream.train.experiments.stacks import next_token_loss, transformer
from resstream.train.experiments.tasks import Regression, table_language, train

_GOAL = 1e-2


def _steps_to(model: nn.Module, task: Regression, n_steps: int) -> float:
    losses = train(
        model, lambda: (model(task.inputs) - task.targets).square().mean(), n_steps=n_steps
    )
    return next((float(at) for at, loss in enumerate(losses) if loss < _GOAL), math.inf)


def _measure_correction(size: Size) -> dict[Key, float]:
    depth, n_steps = pick(size, tiny=(2, 2), quick=(20, 250), full=(20, 1000))
    inputs = torch.randn(pick(size, tiny=8, quick=128, full=256), 16)
    shift = torch.tanh(inputs @ torch.randn(16, 16) / 4)
    found: dict[Key, float] = {}
    for name in ("plain", "plain with norm", "SkipInit"):
        for share in (0.0, 0.3):
            # One map near the identity, and a skip from input to output to be learnt or given.
            model = nn.Sequential(_square(depth, **KINDS[name]))
            steps = _steps_to(model, Regression(inputs, inputs + share * shift), n_steps)
            found[f"{name}: x + {share:g} shift"] = steps
    return found


def _square(depth: int, **config: Any) -> nn.Module:
    from resstream.nn.mlp_net import MlpNetConfig, ResidualMlp

    return ResidualMlp(MlpNetConfig(n_layers=depth, d_model=32, d_in=16, d_out=16, **config))


def judge_correction(readings: Readings) -> Judgement:
    """Near the identity the residual net has to get there, in fewer steps."""
    steps = {item.quantity: item.value for item in readings.measured}
    residual = [value for name, value in steps.items() if name.startswith("SkipInit")]
    plain = [value for name, value in steps.items() if name.startswith("plain")]
    said = ", ".join(f"{name}: {value:g}" for name, value in steps.items())
    return judged(
        max(residual) < 0.5 * min(plain),
        f"steps to a loss of {_GOAL:g} (inf: not reached): {said}. That a map near the identity is "
        "easier as a correction is seen; that the maps of real tasks are near the identity is an "
        "assumption",
    )


register(
    Experiment(
        name="correction-against-map",
        title="Is it easier to learn the correction than the map?",
        claim="If the wanted map is near the identity, its difference from it is easier to learn.",
        source="He et al. (2015), Deep Residual Learning, section 3.1 (a hypothesis there)",
        rows=(7,),
        measure=_measure_correction,
        judge=judge_correction,
        chart=Chart(value_title="steps to the goal (open: never)", log_value=True),
        method="20-layer MLP nets that learn the identity, or it plus a small shift, by Adam.",
        seeds=2,
    )
)


def _language_loss(
    tokens: torch.Tensor, *, n_steps: int, rate: float, n_warmup: int = 0, **config: Any
) -> float:
    """Mean loss over the last tenth of training; rising losses and NaN included."""
    model = transformer(d_vocab=16, d_model=32, **config)
    losses = train(
        model,
        lambda: next_token_loss(model, tokens),
        n_steps=n_steps,
        rate=rate,
        n_warmup=n_warmup,
        clip=1.0,
    )
    last = losses[-max(n_steps // 10, 1) :]
    return sum(last) / len(last)


def _measure_no_skip(size: Size) -> dict[Key, float]:
    n_layers, n_steps = pick(size, tiny=(2, 2), quick=(12, 60), full=(12, 400))
    tokens = table_language(8, 24, 16)
    shared: dict[str, Any] = {"n_steps": n_steps, "rate": 1e-3, "n_layers": n_layers}
    return {
        "no skip, Pre-LN": _language_loss(tokens, rule="none", placement="pre", **shared),
        "no skip, Post-LN": _language_loss(tokens, rule="none", placement="post", **shared),
        "residual, Pre-LN": _language_loss(tokens, rule="plain", placement="pre", **shared),
        "residual, Post-LN": _language_loss(tokens, rule="plain", placement="post", **shared),
    }


def judge_no_skip(readings: Readings) -> Judgement:
    """Without a skip the loss stays near chance, with it it falls."""
    loss = {item.quantity: item.value for item in readings.measured}
    without = min(readings.low(f"no skip, {norm}") for norm in ("Pre-LN", "Post-LN"))
    best = readings.high("residual, Pre-LN")
    return judged(
        without > 1.5 * best,
        "training loss: "
        + ", ".join(f"{name} {value:.3g}" for name, value in loss.items())
        + f" (chance {math.log(16):.3g}). Hard with the usual initialisation, not impossible: He "
        "et al. (2023) train transformers without shortcuts, more slowly, with attention and "
        "initialisation made for it",
    )


register(
    Experiment(
        name="transformer-without-skip",
        title="Is a 12-layer transformer without residual connections hard to train?",
        claim="A 12-layer transformer is hard to train without residual connections.",
        source="Tutorials; counter-example He et al. (2023), Deep Transformers without Shortcuts",
        rows=(8,),
        measure=_measure_no_skip,
        judge=judge_no_skip,
        chart=Chart(value_title="training loss, nats a token (chance 2.77)"),
        method="12 blocks of width 32 on sequences in which two tokens determine the next; Adam at "
        "1e-3, the same number of steps.",
        seeds=2,
    )
)


def _measure_warmup(size: Size) -> dict[Key, float]:
    n_layers, n_steps = pick(size, tiny=(2, 4), quick=(6, 60), full=(6, 400))
    rates = pick(size, tiny=(1e-3,), quick=(1e-3, 3e-3, 1e-2), full=(3e-4, 1e-3, 3e-3, 1e-2, 3e-2))
    tokens = table_language(8, 24, 16)
    found: dict[Key, float] = {}
    for placement, name in (("pre", "Pre-LN"), ("post", "Post-LN")):
        for warm, n_warmup in (("no warm-up", 0), ("warm-up", n_steps // 3)):
            for rate in rates:
                found[(f"{name}, {warm}", rate)] = _language_loss(
                    tokens,
                    n_steps=n_steps,
                    rate=rate,
                    n_warmup=n_warmup,
                    n_layers=n_layers,
                    placement=placement,
                )
    return found


def judge_warmup(readings: Readings) -> Judgement:
    """Claimed: below 16 or 24 layers Post-LN does without warm-up."""
    top = readings.places("Pre-LN, no warm-up")[-1]
    loss = {
        f"{name}, {warm}": readings.value(f"{name}, {warm}", top)
        for name in ("Pre-LN", "Post-LN")
        for warm in ("no warm-up", "warm-up")
    }
    best = {name: min(readings.line(f"{name}, no warm-up")) for name in ("Pre-LN", "Post-LN")}
    post_needs = loss["Post-LN, no warm-up"] > 1.2 * loss["Post-LN, warm-up"]
    post_loses = loss["Post-LN, no warm-up"] > 1.2 * loss["Pre-LN, no warm-up"]
    return judged(
        not (post_needs or post_loses),
        f"at a rate of {top:g} the loss is "
        + ", ".join(f"{name} {value:.3g}" for name, value in loss.items())
        + f"; best over all rates without warm-up: Pre-LN {best['Pre-LN']:.3g}, Post-LN "
        f"{best['Post-LN']:.3g}. Post-LN {'loses' if post_needs or post_loses else 'keeps'} the "
        "largest rate at 6 layers already. The thresholds have no source; Xiong et al. have the "
        "effect at 6 layers of encoder and decoder",
    )


register(
    Experiment(
        name="warm-up",
        title="From which depth does Post-LN need warm-up?",
        claim="Post-LN needs warm-up only beyond 16 (or 24) layers.",
        source="Tutorials; Xiong et al. (2020), figure 1, has it at 6 layers",
        rows=(17,),
        measure=_measure_warmup,
        judge=judge_warmup,
        chart=Chart(
            value_title="training loss, nats a token",
            at_title="learning rate",
            log_at=True,
        ),
        method="6 blocks of width 32, Adam, gradients clipped at 1, with linear warm-up over a "
        "third of the steps or none.",
        seeds=2,
    )
)


def _measure_speed(size: Size) -> dict[Key, float]:
    n_layers, n_steps = pick(size, tiny=(2, 2), quick=(12, 60), full=(12, 400))
    tokens = table_language(8, 24, 16)
    shared: dict[str, Any] = {"n_steps": n_steps, "rate": 1e-3, "n_layers": n_layers}
    return {
        "loss, ReZero": _language_loss(tokens, rule="rezero", **shared),
        "loss, Post-LN": _language_loss(tokens, placement="post", **shared),
        "loss, Pre-LN": _language_loss(tokens, placement="pre", **shared),
    }


def judge_speed(readings: Readings) -> Judgement:
    """A ratio of steps on enwik8 can't be had from a toy."""
    said = ", ".join(
        f"{item.quantity.removeprefix('loss, ')} {item.value:.3g}" for item in readings.measured
    )
    return Judgement(
        "not testable at this size",
        f"56 % fewer steps to 1.2 bits a byte is a statement on enwik8, 12 layers of width 512 and "
        f"days of a GPU. On a toy language, after as many steps, the loss is: {said}; that decides "
        "nothing about the number",
    )


register(
    Experiment(
        name="rezero-speed",
        title="Does ReZero train 56 % faster?",
        claim="A 12-layer ReZero transformer reaches 1.2 BPB on enwik8 56 % faster.",
        source="Bachlechner et al. (2020), ReZero is All You Need, table 2",
        rows=(23,),
        measure=_measure_speed,
        judge=judge_speed,
        chart=Chart(value_title="training loss, nats a token"),
        method="12 blocks of width 32 on a table language, Adam at 1e-3.",
        seeds=2,
    )
)
