"""What happens to a stream whose skip path is weighted, gated, rectified or replaced?"""

from typing import Any

import torch

from resstream.nn.scales import WriteScale
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
from resstream.train.experiments.tasks import fit, regression, watched

_GATED: dict[str, tuple[dict[str, Any], float]] = {
    "beta = 0.9": ({"kind": "weighted", "skip": 0.9}, 0.9),
    "beta = 0.5": ({"kind": "weighted", "skip": 0.5}, 0.5),
    "beta = 1": ({"kind": "weighted", "skip": 1.0}, 1.0),
    "beta = 1.1": ({"kind": "weighted", "skip": 1.1}, 1.1),
    "highway, bias 0": ({"kind": "highway", "bias": 0.0}, 0.5),
    "highway, bias -1": ({"kind": "highway", "bias": -1.0}, 0.7311),
    "highway, bias -3": ({"kind": "highway", "bias": -3.0}, 0.9526),
    "gate, bias 0": ({"kind": "gate", "bias": 0.0}, 0.5),
}
"""Name -> rule, and what it carries of the stream in one block where its gate reads nothing."""


def _carried(n_layers: int, rule: dict[str, Any]) -> float:
    """What is left of the stream after blocks whose branches write zero and whose gates rest."""
    model = net(n_layers, rule=rule, placement="none")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith("blocks.") and not _is_bias(name) and ".scales." not in name:
                parameter.zero_()
        for scale in (part for part in model.modules() if isinstance(part, WriteScale)):
            for name, parameter in scale.named_parameters():
                if "weight" in name:
                    parameter.zero_()
        with watched(model, "hook_resid_pre", "hook_resid_post") as seen:
            model(torch.randn(8, 16))
    values = list(seen.values())
    return float(values[-1].norm() / values[0].norm())


def _is_bias(name: str) -> bool:
    return name.endswith("bias") and ".scales." in name


def _measure_powers(size: Size) -> dict[Key, float]:
    depths = pick(size, tiny=(2,), quick=(6, 12, 24, 48), full=(6, 12, 24, 48, 110))
    found: dict[Key, float] = {}
    for name, (rule, carry) in _GATED.items():
        for depth in depths:
            found[(name, depth)] = _carried(depth, rule)
            found[(f"{name}: expected", depth)] = carry**depth
    return found


def judge_powers(readings: Readings) -> Judgement:
    """Measured is carry^L for every rule."""
    error = max(
        abs(measured / expected - 1)
        for name in _GATED
        for measured, expected in zip(
            readings.line(name), readings.line(f"{name}: expected"), strict=True
        )
    )
    deepest = readings.places("beta = 0.9")[-1]
    said = ", ".join(f"{name} {readings.value(name, deepest):.2g}" for name in _GATED)
    return judged(
        error < 0.02,
        f"after {deepest:.0f} silent blocks there is left of the stream: {said}; "
        f"that is carry^L to {error:.1%}. A weight below 1 on the skip path halves the effective "
        "depth again and again; only a weight of 1, or a gate that starts nearly closed, keeps it",
    )


register(
    Experiment(
        name="powers-of-the-skip",
        title="What is left of the stream behind weighted and gated skips?",
        claim="With y = alpha F + beta x (or a gate 1 - T on x) the stream decays as beta^L.",
        source="He et al. (2016), Identity Mappings, section 3; Srivastava et al. (2015), Highway",
        rows=(39, 40),
        measure=_measure_powers,
        judge=judge_powers,
        chart=Chart(
            value_title="stream after / before",
            at_title="blocks",
            log_value=True,
            log_at=True,
            quantities=tuple(_GATED),
        ),
        method="MLP nets with all branches at zero and gates that see nothing but their bias.",
        seeds=2,
    )
)

_ACTIVATIONS = {
    "nothing on the skip path (pre)": "pre",
    "activation after the addition": "after_add",
    "activation before the addition": "before_add",
    "activation inside the branch": "inside",
}


def _measure_activation(size: Size) -> dict[Key, float]:
    n_steps = pick(size, tiny=2, quick=60, full=300)
    task = regression(pick(size, tiny=16, quick=256, full=512))
    depths = pick(size, tiny=(2,), quick=(18, 54), full=(18, 54, 110))
    found: dict[Key, float] = {}
    for name, activation in _ACTIVATIONS.items():
        for depth in depths:
            model = net(depth, rule="plain", placement="after", activation=activation)
            found[(f"{name}: loss", depth)] = fit(model, task, n_steps=n_steps)
            if depth == depths[-1]:
                found[f"{name}: negative share of the writes"] = _negative_share(model)
    return found


def _negative_share(model: torch.nn.Module) -> float:
    """Share of the elements of what is added that are below zero."""
    with watched(model, "hook_mlp_out") as seen, torch.no_grad():
        model(torch.randn(64, 16))
    writes = torch.stack(list(seen.values()))
    return float((writes < 0).float().mean())


def judge_activation(readings: Readings) -> Judgement:
    """P6 says normalise and activate after the addition; He (2016) found that worse."""
    deepest = readings.places("activation inside the branch: loss")[-1]
    loss = {name: readings.value(f"{name}: loss", deepest) for name in _ACTIVATIONS}
    after, pre = loss["activation after the addition"], loss["nothing on the skip path (pre)"]
    before = readings.value("activation before the addition: negative share of the writes")
    best = min(loss, key=lambda name: loss[name])
    return judged(
        readings.high("activation after the addition: loss", deepest)
        < readings.low("nothing on the skip path (pre): loss", deepest),
        f"training loss at {deepest:.0f} blocks: "
        + ", ".join(f"{name} {value:.2g}" for name, value in loss.items())
        + f"; best is: {best}. After the addition costs {after / pre:.2g} times what the pre-form "
        f"does. An activation right before the addition leaves {before:.0%} of the writes "
        "negative, so the stream can only grow. Right form: nothing on the skip path, and no sign "
        "forced on the branch",
    )


register(
    Experiment(
        name="activation-after-addition",
        title="Should the activation come after the addition?",
        claim="Do not activate before the addition; normalise and activate after it.",
        source="Tutorials; He et al. (2016), Identity Mappings, section 4, finds the opposite",
        rows=(49, 51),
        measure=_measure_activation,
        judge=judge_activation,
        chart=Chart(
            value_title="training loss after the last step",
            at_title="blocks",
            log_value=True,
            quantities=tuple(f"{name}: loss" for name in _ACTIVATIONS),
        ),
        method="MLP nets of width 32 with a norm at the end of the branch and the ReLU at four "
        "places, fitted to a random teacher.",
        seeds=2,
    )
)

_SKIPS: dict[str, dict[str, Any]] = {
    "identity": {"rule": "plain"},
    "adapter in place of it": {"rule": {"kind": "adapter_skip", "width": 8}},
    "nothing": {"rule": "none", "placement": "pre"},
}


def _measure_adapter(size: Size) -> dict[Key, float]:
    n_steps = pick(size, tiny=2, quick=60, full=300)
    depth = pick(size, tiny=3, quick=54, full=54)
    task = regression(pick(size, tiny=16, quick=256, full=512))
    return {name: fit(net(depth, **cfg), task, n_steps=n_steps) for name, cfg in _SKIPS.items()}


def judge_adapter(readings: Readings) -> Judgement:
    """An adapter would have to do as well as the identity that it replaces."""
    loss = {name: readings.value(name) for name in _SKIPS}
    return judged(
        readings.low("adapter in place of it") < 2 * readings.high("identity"),
        f"training loss with the identity {loss['identity']:.2g}, with a bottleneck adapter in "
        f"place of the identity {loss['adapter in place of it']:.2g}, with neither "
        f"{loss['nothing']:.2g}. The adapters of the literature sit inside a residual branch; they "
        "replace no residual",
    )


register(
    Experiment(
        name="adapter-for-residual",
        title="Can an adapter replace the residual connection?",
        claim="Adapters can replace residual connections.",
        source="Tutorials; Houlsby et al. (2019), whose adapters have a skip of their own",
        rows=(50,),
        measure=_measure_adapter,
        judge=judge_adapter,
        chart=Chart(value_title="training loss after the last step", log_value=True),
        method="MLP nets of 54 blocks, width 32, fitted to a random teacher.",
        seeds=2,
    )
)
