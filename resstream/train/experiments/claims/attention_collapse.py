"""Does deep attention die in Pre-LN, and what do LayerScale, DeepNorm and LayerNorm scaling do?"""

import math
from typing import Any

from jaxtyping import Float
from torch import Tensor

from resstream.train.experiments.claims.collapse import token_difference
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
    random_tokens,
    rms,
    sites_of,
    transformer,
)

_RULES: dict[str, dict[str, Any]] = {
    "Pre-LN": {"rule": "plain"},
    "LayerScale 1e-5": {"rule": "layer_scale"},
    "DeepNorm": {"rule": "deepnorm", "init": None},
    "LayerNorm scaling": {"rule": "layer_norm_scaling"},
}


def attention_entropy(
    query: Float[Tensor, "batch pos n_heads d_head"], key: Float[Tensor, "batch pos n_heads d_head"]
) -> float:
    """Entropy of causal attention over its largest value, mean over heads and queries from 1 on."""
    scores = query.transpose(1, 2) @ key.transpose(1, 2).transpose(-1, -2)
    length = scores.shape[-1]
    seen = scores.new_ones(length, length).tril().bool()
    pattern = (scores / math.sqrt(query.shape[-1])).masked_fill(~seen, -math.inf).softmax(-1)
    entropy = -(pattern * pattern.clamp_min(1e-30).log()).sum(-1)[..., 1:]
    most = (seen.sum(-1)[1:].to(entropy)).log()
    return float((entropy / most).mean())


def _read(name: str, config: dict[str, Any], n_layers: int) -> dict[Key, float]:
    model = transformer(n_layers=n_layers, **config)
    tokens = random_tokens(2, 32)
    ends = ("hook_resid_pre", "hook_attn_out", "attn.hook_q", "attn.hook_k")
    seen = sites_of(model, tokens, *ends)
    found: dict[Key, float] = {}
    for layer in range(n_layers):
        stream, write, query, key = (seen[f"blocks.{layer}.{end}"] for end in ends)
        found[(f"{name}: relative write", layer + 1)] = rms(write) / rms(stream)
        found[(f"{name}: write", layer + 1)] = rms(write)
        found[(f"{name}: difference between tokens", layer + 1)] = token_difference(stream)
        found[(f"{name}: entropy", layer + 1)] = attention_entropy(query, key)
    return found


def _measure(size: Size) -> dict[Key, float]:
    n_layers = pick(size, tiny=3, quick=32, full=48)
    found: dict[Key, float] = {}
    for name, config in _RULES.items():
        found |= _read(name, config, n_layers)
    return found


def _last_over_first(readings: Readings, quantity: str) -> float:
    line = readings.line(quantity)
    return line[-1] / line[0]


def judge_attention(readings: Readings) -> Judgement:
    """Claimed: the writes themselves go to zero."""
    places = readings.places("Pre-LN: relative write")
    tail = places[len(places) // 4 :]
    power = log_slope(tail, [readings.value("Pre-LN: relative write", at) for at in tail])
    size = _last_over_first(readings, "Pre-LN: write")
    relative = {name: _last_over_first(readings, f"{name}: relative write") for name in _RULES}
    scaled = readings.value("LayerScale 1e-5: relative write", places[-1])
    left = readings.value("Pre-LN: difference between tokens", places[-1])
    entropy = readings.value("Pre-LN: entropy", places[-1])
    return judged(
        size < 0.1,
        f"the attention's write is as large in the last block as in the first ({size:.2g} times); "
        f"what falls is its size relative to the stream ({relative['Pre-LN']:.2g} times; as "
        f"block^{power:.2f}), because the stream grows. The tokens still differ ({left:.2g} of the "
        f"norm) and attention is not saturated (entropy {entropy:.2g} of its largest), so three "
        "things that go by the name of collapse must be kept apart. Last over first of the "
        f"relative write: DeepNorm {relative['DeepNorm']:.2g}, LayerNorm scaling "
        f"{relative['LayerNorm scaling']:.2g}; LayerScale does not help, it starts all writes at "
        f"{scaled:.1g} of the stream and leaves it to training to raise them",
    )


register(
    Experiment(
        name="attention-collapse",
        title="Do deep attention writes go to zero in Pre-LN?",
        claim="In deep Pre-LN models the attention collapses, its writes go to about 0; LayerScale "
        "or DeepNorm relieve it.",
        source="Tutorials; Liu et al. (2020), Admin; Zhai et al. (2023); Sun et al. (2025)",
        rows=(18, 27, 52),
        measure=_measure,
        judge=judge_attention,
        chart=Chart(
            value_title="write of the attention / stream (rms)",
            at_title="block",
            log_value=True,
            quantities=tuple(f"{name}: relative write" for name in _RULES),
        ),
        method="Causal transformers of width 64 at initialisation, random tokens: size of the "
        "attention's write, its ratio to the stream, differences between tokens, entropy.",
    )
)


def _lemma(n_blocks: int) -> float:
    """The variance bound iterated literally: s_l^2 = prod over k < l of (1 + 1 / s_k), s_1 = 1."""
    variance = 1.0
    for _ in range(n_blocks - 1):
        variance *= 1 + 1 / math.sqrt(variance)
    return variance


def _measure_curse(size: Size) -> dict[Key, float]:
    n_layers = pick(size, tiny=3, quick=32, full=64)
    found: dict[Key, float] = {}
    for name in ("Pre-LN", "LayerNorm scaling"):
        model = transformer(n_layers=n_layers, **_RULES[name])
        streams = sites_of(model, random_tokens(2, 32), "hook_resid_post").values()
        found |= {(name, layer + 1): rms(stream) ** 2 for layer, stream in enumerate(streams)}
    for at in (10, 100, 1000):
        found[("lemma iterated / (k^2 / 4)", at)] = _lemma(at) / (at * at / 4)
    return found


def _ends(places: list[float]) -> tuple[float, float, float]:
    """First place, the last, and the one half-way between."""
    return places[0], places[(len(places) - 1) // 2], places[-1]


def judge_curse(readings: Readings) -> Judgement:
    """Exponential growth would double at a constant step; a power law does not."""
    places = readings.places("Pre-LN")
    start, half, last = (readings.value("Pre-LN", at) for at in _ends(places))
    first, second = half / start, last / half
    power = log_slope(places, readings.line("Pre-LN"))
    scaled = readings.value("LayerNorm scaling", places[-1])
    return judged(
        math.log(second) > 0.7 * math.log(first),
        f"at initialisation the variance grows as block^{power:.2f} ({first:.2g} times in the "
        f"first half, {second:.2g} times in the second), to {last:.3g}; "
        f"with LayerNorm scaling to {scaled:.3g}. The lemma iterated as it stands gives k^2 / 4 "
        f"({readings.value('lemma iterated / (k^2 / 4)', 1000):.3g} of it at k = 1,000): the "
        "exponential is only its upper envelope. Trained models can grow exponentially; that "
        "needs a trained model to see (`resstream record`)",
    )


register(
    Experiment(
        name="curse-of-depth",
        title="Does the variance of Pre-LN grow exponentially, and does LayerNorm scaling stop it?",
        claim="The output variance of Pre-LN grows exponentially with depth.",
        source="Sun et al. (2025), The Curse of Depth in Large Language Models, lemma 3.2",
        rows=(19,),
        measure=_measure_curse,
        judge=judge_curse,
        chart=Chart(
            value_title="variance of the stream (mean square)",
            at_title="block",
            log_value=True,
            quantities=("Pre-LN", "LayerNorm scaling"),
        ),
        method="Stream after every block at initialisation; the lemma's recursion iterated.",
    )
)
