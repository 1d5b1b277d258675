"""How does the gradient of the last block go with depth under each rule?"""

import math
from typing import Any

import torch

from resstream.nn.initialisation import DepthScaledNormal
from resstream.train.experiments.claims.attention_collapse import attention_entropy
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

EXPECTED: dict[str, tuple[dict[str, Any], float | None]] = {
    "LayerNorm scaling": ({"rule": "layer_norm_scaling"}, None),
    "sandwich": ({"placement": "sandwich"}, None),
    "DeepNorm": ({"rule": "deepnorm", "init": None}, None),
    "Sub-LN": ({"rule": "sub_ln", "init": None}, None),
    "Depth-muP": ({"rule": "depth_mup"}, -0.5),
    "CompleteP": ({"rule": "completep"}, -1.0),
    "NormFormer": ({"placement": "normformer"}, None),
    "GPT-2 scaling": ({"init": DepthScaledNormal()}, None),
}
"""Rule -> config, and the power of depth that follows from its definition, where one does."""


def _last_gradient(n_layers: int, config: dict[str, Any]) -> float:
    model = transformer(n_layers=n_layers, tied=False, **config)
    torch.nn.init.normal_(model.embed.weight)  # a stream that starts smaller than a write hides L
    next_token_loss(model, random_tokens(4, 33)).backward()
    gradient = model.get_parameter(f"blocks.{n_layers - 1}.mlp.down_proj.weight").grad
    assert gradient is not None
    return float(gradient.norm())


def _measure_slopes(size: Size) -> dict[Key, float]:
    depths = pick(size, tiny=(2, 4), quick=(3, 6, 12, 24), full=(3, 6, 12, 24, 48, 96))
    return {
        (name, depth): _last_gradient(depth, config)
        for name, (config, _) in EXPECTED.items()
        for depth in depths
    }


def judge_slopes(readings: Readings) -> Judgement:
    """1/sqrt(L) and 1/L on the branch show as powers -1/2 and -1."""
    power = {name: log_slope(readings.places(name), readings.line(name)) for name in EXPECTED}
    off = [
        name
        for name, (_, expected) in EXPECTED.items()
        if expected is not None and abs(power[name] - expected) > 0.15
    ]
    return judged(
        not off,
        "gradient of the last output matrix goes as depth to the power of: "
        + ", ".join(f"{name} {value:.2f}" for name, value in power.items())
        + ". Only Depth-muP and CompleteP are made for a power (-1/2 and -1)"
        + (f"; off: {', '.join(off)}" if off else ", and they have it"),
    )


register(
    Experiment(
        name="scaling-rules",
        title="How do the rules for depth scale the last block's gradient?",
        claim="Depth-muP (1/sqrt(L)) and CompleteP (1/L) scale gradients as their branch factor.",
        source="Yang et al. (2023), Tensor Programs VI; Dey et al. (2025), CompleteP",
        rows=(32, 30, 31),
        measure=_measure_slopes,
        judge=judge_slopes,
        chart=Chart(
            value_title="gradient norm of the last output matrix",
            at_title="blocks",
            log_value=True,
            log_at=True,
        ),
        method="Untrained transformers of width 64, embeddings of unit size, random tokens.",
        seeds=2,
    )
)


def _measure_adaln(size: Size) -> dict[Key, float]:
    n_layers = pick(size, tiny=2, quick=12, full=24)
    model = transformer(n_layers=n_layers, rule={"kind": "adaln_zero", "d_condition": 8})
    tokens, condition = random_tokens(2, 17), torch.randn(2, 8)
    model(tokens, condition=condition).square().mean().backward()
    gradients = {"gate": 0.0, "branch": 0.0}
    for name, parameter in model.named_parameters():
        if name.startswith("blocks.") and parameter.grad is not None:
            part = "gate" if ".scales." in name else "branch"
            gradients[part] = max(gradients[part], float(parameter.grad.abs().max()))
    seen = sites_of(model, tokens, "hook_resid_pre", "hook_resid_post")
    first, *_, last = seen.values()
    return {
        "change of the stream, AdaLN-Zero": rms(last - first) / rms(first),
        "largest gradient of what makes the gates": gradients["gate"],
        "largest gradient inside attention and MLP": gradients["branch"],
    }


def judge_adaln(readings: Readings) -> Judgement:
    """With the gate the block is the identity; without it the LN alone would not be."""
    change = readings.high("change of the stream, AdaLN-Zero")
    inside = readings.high("largest gradient inside attention and MLP")
    gate = readings.low("largest gradient of what makes the gates")
    return judged(
        change == 0.0 and inside == 0.0 and gate > 0.0,
        f"the stream changes by {change:g}, the gradient is {inside:g} in attention and MLP and "
        f"up to {gate:.2g} where the gates are made: it is the gate g, which some summaries leave "
        "out, that makes the zero",
    )


register(
    Experiment(
        name="adaln-zero-start",
        title="Does AdaLN-Zero start as the identity?",
        claim="AdaLN-Zero makes every block the identity at the start.",
        source="Peebles and Xie (2023), DiT, section 3.2",
        rows=(30,),
        measure=_measure_adaln,
        judge=judge_adaln,
        chart=Chart(value_title="relative change, or largest gradient"),
        method="A conditioned transformer at initialisation after one backward pass.",
    )
)


def _measure_scores(size: Size) -> dict[Key, float]:
    width = pick(size, tiny=8, quick=64, full=128)
    query, key = torch.randn(2, 2, 32, 4, width)
    found: dict[Key, float] = {
        "entropy, scores / sqrt(d)": attention_entropy(query, key),
        "entropy, scores / d": attention_entropy(query, key / math.sqrt(width)),
    }
    previous = torch.randn(2, 32, 4, width)
    summed = torch.cat([query, previous], -1), torch.cat([key, key.roll(1, 1)], -1)
    found["entropy, scores and previous scores"] = attention_entropy(
        summed[0] * math.sqrt(2), summed[1]
    )
    return found


def judge_scores(readings: Readings) -> Judgement:
    """Dividing by d makes the pattern nearly uniform."""
    root = readings.value("entropy, scores / sqrt(d)")
    whole = readings.value("entropy, scores / d")
    both = readings.value("entropy, scores and previous scores")
    return judged(
        whole < root + 0.02,
        f"divided by d instead of sqrt(d) attention is nearly uniform (entropy {whole:.3f} of its "
        f"largest, against {root:.3f}). What exists is RealFormer: the scores of the layer before "
        f"are added before the softmax (entropy {both:.3f}: sharper), not the outputs, and "
        "Transformer-XL has nothing of the kind",
    )


register(
    Experiment(
        name="residual-attention-form",
        title="Which form does residual attention have?",
        claim="Attention residual (Transformer-XL): softmax(Q K^T / d) V plus the one before.",
        source="Tutorials; He et al. (2021), RealFormer, equation 4",
        rows=(43,),
        measure=_measure_scores,
        judge=judge_scores,
        chart=Chart(value_title="entropy of attention / its largest value"),
        method="Gaussian queries and keys of width 64, causal, both divisors.",
    )
)
