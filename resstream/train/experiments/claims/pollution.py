"""Which layer pollutes the stream: do symptoms tell, does patching, does a scale help?"""

from itertools import pairwise

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from resstream.analysis.ablation import ablate
from resstream.stream.faults import inject
from resstream.stream.loading import load
from resstream.stream.model import StreamModel
from resstream.train.experiments.demo import demo, demo_tokens
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

_FACTOR = 24.0


def _polluted(layer: int, factor: float = _FACTOR) -> StreamModel:
    """The embedded model with one MLP's output matrix multiplied."""
    model = load("demo")
    inject(model, "scale", layer=layer, write="mlp", severity=factor)
    return model


def _loss(model: StreamModel, tokens: Tensor, *, site: str = "", factor: float = 1.0) -> float:
    """Nats per token, with one write multiplied."""
    with torch.no_grad():
        hooks = {site: lambda value: factor * value} if site else {}
        logits = model.run(tokens, hooks) if hooks else model.forward(tokens)
    return float(F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()))


def _largest(model: StreamModel, tokens: Tensor) -> float:
    """Largest channel of the last stream over its median."""
    kept: list[Tensor] = []
    site = f"blocks.{model.spec.n_layers - 1}.hook_resid_post"
    with torch.no_grad():
        model.run(tokens, {site: lambda value: kept.append(value.abs())})
    return float(kept[0].max() / kept[0].median())


def _restored(model: StreamModel, tokens: Tensor, site: str, losses: tuple[float, float]) -> float:
    """Share of the damage that the clean write of one site takes away."""
    kept: list[Tensor] = []
    with torch.no_grad():
        demo().run(tokens, {site: lambda value: kept.append(value.clone())})
        logits = model.run(tokens, {site: lambda value: kept[0]})
    loss = float(F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()))
    clean, broken = losses
    return (broken - loss) / (broken - clean)


def _measure(size: Size) -> dict[Key, float]:
    tokens = demo_tokens(pick(size, tiny=1, quick=4, full=32))
    clean = _loss(demo(), tokens)
    layers = pick(size, tiny=(4,), quick=(3, 4, 5), full=(2, 3, 4, 5, 6))
    found: dict[Key, float] = {"loss, clean": clean}
    for layer in layers:
        model, site = _polluted(layer), f"blocks.{layer}.hook_mlp_out"
        broken = _loss(model, tokens)
        found[("loss, polluted", layer)] = broken
        effects = ablate(model, tokens, kind="zero", sites=["blocks.*.hook_mlp_out"]).effects
        least = min(effects, key=lambda effect: effect.effect)
        found[("found by ablation (1: that layer)", layer)] = float(least.layer == layer)
        restored = {
            other: _restored(model, tokens, f"blocks.{other}.hook_mlp_out", (clean, broken))
            for other in layers
        }
        found[("restored by the clean write there", layer)] = restored.pop(layer)
        found[("restored by another clean write", layer)] = max(restored.values(), default=0.0)
        found[("loss, that write scaled down", layer)] = _loss(
            model, tokens, site=site, factor=1 / _FACTOR
        )
    return found


def judge_pollution(readings: Readings) -> Judgement:
    """Patching the layer at fault restores the loss, another does not; a scale repairs it."""
    layers = readings.places("loss, polluted")
    clean = readings.value("loss, clean")
    there = min(readings.low("restored by the clean write there", at) for at in layers)
    other = max(readings.high("restored by another clean write", at) for at in layers)
    found = min(readings.low("found by ablation (1: that layer)", at) for at in layers)
    scaled = max(readings.value("loss, that write scaled down", at) for at in layers)
    return judged(
        there > 0.9 and other < 0.5 and scaled < 1.1 * clean,
        f"the clean write patched in at the layer at fault takes {there:.0%} of the damage away, "
        f"at another layer at most {other:.0%}; "
        f"{'in every run' if found == 1 else 'not in every run'} it is also the layer whose "
        f"ablation helps most, without any clean model. A scale of 1/{_FACTOR:.0f} on that write "
        f"brings the loss back to {scaled:.3g} (clean {clean:.3g}): the remedy works if the layer "
        "is known",
    )


_METHOD = (
    f"The embedded model with the output matrix of one MLP times {_FACTOR:.0f}, in each of several "
    "layers; clean writes patched in, writes ablated, and the write scaled down."
)
register(
    Experiment(
        name="pollution",
        title="Does patching find the layer that pollutes the stream, and does a scale repair it?",
        claim="A layer that pollutes the stream is found by activation patching; LayerScale is the "
        "remedy.",
        source="Tutorials, table of production pitfalls, row 7",
        rows=(52, 14),
        measure=_measure,
        judge=judge_pollution,
        chart=Chart(
            value_title="share of the damage taken away",
            at_title="layer at fault",
            quantities=("restored by the clean write there", "restored by another clean write"),
        ),
        method=_METHOD,
        seeds=2,
    )
)


def _measure_symptoms(size: Size) -> dict[Key, float]:
    tokens = demo_tokens(pick(size, tiny=1, quick=4, full=32))
    found: dict[Key, float] = {"loss, clean": _loss(demo(), tokens)}
    for layer in pick(size, tiny=(3, 4), quick=(2, 3, 4, 5), full=(1, 2, 3, 4, 5, 6)):
        for factor in (8.0, 24.0, 72.0):
            site, clean = f"blocks.{layer}.hook_mlp_out", demo()
            found[(f"loss, MLP times {factor:g}", layer)] = _loss(
                clean, tokens, site=site, factor=factor
            )
        found[("largest channel / median", layer)] = _largest(_polluted(layer), tokens)
    return found


def judge_symptoms(readings: Readings) -> Judgement:
    """A symptom names the layer if no two layers can show the same value of it."""
    names = [item.quantity for item in readings.measured if "times" in item.quantity]
    layers = readings.places(names[0])
    ranges = [
        (
            min(readings.low(name, at) for name in names),
            max(readings.high(name, at) for name in names),
        )
        for at in layers
    ]
    apart = all(one[1] < other[0] for one, other in pairwise(sorted(ranges)))
    ratios = [readings.value("largest channel / median", at) for at in layers]
    return judged(
        apart,
        f"the same fault, weaker or stronger, in layers {', '.join(f'{at:.0f}' for at in layers)} "
        "gives losses of "
        + ", ".join(f"{low:.2g} to {high:.2g}" for low, high in ranges)
        + f" (clean {readings.value('loss, clean'):.2g}): "
        + ("every layer has its own range" if apart else "one loss, several layers that may be it")
        + ". The largest channel is "
        + ", ".join(f"{ratio:.2g}" for ratio in ratios)
        + " times the median. Symptoms tell that something is wrong; an ablation of each write "
        "tells where (experiment `pollution`)",
    )


register(
    Experiment(
        name="symptoms",
        title="Do the symptoms of a broken residual tell which layer is at fault?",
        claim="A loss that does not fall, or values out of range, show where the residual is "
        "broken.",
        source="Tutorials on monitoring residual networks",
        rows=(48,),
        measure=_measure_symptoms,
        judge=judge_symptoms,
        chart=Chart(
            value_title="loss, nats a token",
            at_title="layer at fault",
            quantities=tuple(f"loss, MLP times {factor}" for factor in (8, 24, 72)),
        ),
        method="The embedded model with the write of one MLP times 8, 24 or 72, layer by layer.",
        seeds=2,
    )
)
