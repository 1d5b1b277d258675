"""What does a residual connection cost: additions, parameters, kept activations, memory traffic?"""

from typing import Any

import torch
from torch import Tensor, nn

from resstream.train.experiments.claims.autograd import saved_bytes
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

_POS, _WIDTH, _LAYERS = 512, 768, 12


def _flops(act: Any) -> float:
    """Multiply-adds count as two; torch counts those of matrix products."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        act()
    return float(counter.get_total_flops())


def _measure_flops(size: Size) -> dict[Key, float]:
    pos, width = pick(size, tiny=(8, 16), quick=(_POS, _WIDTH), full=(_POS, _WIDTH))
    x = torch.zeros(1, pos, width)
    heads = width // 64 or 1
    attention = nn.MultiheadAttention(width, heads, batch_first=True)
    measured = _flops(lambda: attention(x, x, x, need_weights=True))
    added = float(pos * width)
    return {
        "additions, one residual": added,
        "additions, 12 layers of two": 2 * _LAYERS * added,
        "FLOPs of one attention, counted by torch": measured,
        "FLOPs of one attention, 8 n d^2 + 4 n^2 d": 8.0 * pos * width**2 + 4.0 * pos**2 * width,
        "bytes moved per addition, float32": 12.0,
    }


def judge_flops(readings: Readings) -> Judgement:
    """There are n d additions, beside an attention of billions."""
    added = readings.value("additions, one residual")
    counted = readings.value("FLOPs of one attention, counted by torch")
    formula = readings.value("FLOPs of one attention, 8 n d^2 + 4 n^2 d")
    return judged(
        added == _POS * _WIDTH and abs(counted / formula - 1) < 0.02 and added < 1e-3 * counted,
        f"{added:,.0f} additions a residual, {readings.value('additions, 12 layers of two'):.3g} "
        f"in 12 layers of two; one attention takes {counted:.3g} FLOPs, so the addition is "
        f"{added / counted:.1e} of it. Negligible FLOPs are not negligible time: it moves 12 bytes "
        "for each of them, and is bound by memory",
    )


register(
    Experiment(
        name="flops-of-the-addition",
        title="How many FLOPs does a residual connection cost?",
        claim="n d additions, about 3.9e5 at n = 512 and d = 768: negligible beside attention.",
        source="Tutorials on residual connections",
        rows=(53,),
        measure=_measure_flops,
        judge=judge_flops,
        chart=Chart(value_title="FLOPs, or bytes", log_value=True),
        method="Matrix products counted by torch's FLOP counter at n = 512, d = 768.",
        seeds=0,
    )
)


def _kept(act: Any, x: Tensor) -> float:
    """What autograd keeps, in tensors of the stream's size."""
    return saved_bytes(act) / (x.numel() * x.element_size())


def _measure_memory(size: Size) -> dict[Key, float]:
    pos, width = pick(size, tiny=(8, 16), quick=(128, 256), full=(512, 768))
    x = torch.randn(1, pos, width, requires_grad=True)
    write = torch.randn(1, pos, width, requires_grad=True)
    scale, norm = torch.ones(width, requires_grad=True), nn.LayerNorm(width)
    found: dict[Key, float] = {
        "streams kept by x + w": _kept(lambda: x + write, x),
        "streams kept by LayerNorm(x)": _kept(lambda: norm(x), x),
        "streams kept by lambda * w": _kept(lambda: scale * write, x),
    }
    for name, config in _PARAMETERS.items():
        found[f"parameters of the rule: {name}"] = _parameters(config)
    return found


_PARAMETERS: dict[str, dict[str, Any]] = {
    "identity": {"rule": "plain"},
    "ReZero": {"rule": "rezero"},
    "LayerScale": {"rule": "layer_scale"},
}


def _parameters(config: dict[str, Any]) -> float:
    model = transformer(n_layers=6, d_model=64, **config)
    return float(
        sum(value.numel() for name, value in model.named_parameters() if ".scales." in name)
    )


def judge_memory(readings: Readings) -> Judgement:
    """Claimed: x must be stored for the backward pass of the addition."""
    added = readings.value("streams kept by x + w")
    normed = readings.value("streams kept by LayerNorm(x)")
    scaled = readings.value("streams kept by lambda * w")
    return judged(
        added >= 1.0,
        f"the addition keeps {added:g} streams: its derivative is 1 whatever x is. What keeps x is "
        f"the norm that reads it ({normed:.3g} streams), and a scale keeps the branch "
        f"({scaled:.3g}). Parameters at 6 blocks of width 64: identity "
        f"{readings.value('parameters of the rule: identity'):.0f}, ReZero "
        f"{readings.value('parameters of the rule: ReZero'):.0f} (one a block), LayerScale "
        f"{readings.value('parameters of the rule: LayerScale'):.0f} (2 L d)",
    )


register(
    Experiment(
        name="memory-of-the-addition",
        title="Must x be stored for the backward pass of the addition?",
        claim="In training x has to be stored for the backward pass of the residual addition; "
        "it has no parameters.",
        source="Tutorials; Korthikanti et al. (2022) on what a layer keeps",
        rows=(54, 55),
        measure=_measure_memory,
        judge=judge_memory,
        chart=Chart(value_title="tensors of the stream's size that are kept; parameters"),
        method="Tensors that autograd packs, by storage; parameters of the native models.",
        seeds=0,
    )
)


def _passes(*steps: tuple[int, int]) -> float:
    """Reads and writes of n d numbers over all steps."""
    return float(sum(reads + writes for reads, writes in steps))


def _measure_traffic(size: Size) -> dict[Key, float]:
    del size
    scale, add, norm, cast = (1, 1), (2, 1), (1, 1), (1, 1)
    return {
        "passes: lambda w, add, norm, cast": _passes(scale, add, norm, cast),
        "passes: fused, lambda and cast inside": _passes((2, 2)),
        "passes: add, norm": _passes(add, norm),
        "passes: fused add and norm": _passes((2, 2)),
        "passes: if no intermediate were written": _passes((2, 1)),
    }


def judge_traffic(readings: Readings) -> Judgement:
    """Fusing spares passes, but the new stream has to be written all the same."""
    four = readings.value("passes: lambda w, add, norm, cast")
    fused = readings.value("passes: fused, lambda and cast inside")
    two = readings.value("passes: add, norm")
    least = readings.value("passes: if no intermediate were written")
    return judged(
        fused <= least,
        f"of x + F(LN(x)) the norm and the addition are not neighbours: F lies between. What fuses "
        f"is a write, the addition, and the next norm: {four:.0f} passes over n d become "
        f"{fused:.0f} with scale and cast, {two:.0f} become {fused:.0f} without. One of the "
        f"{fused:.0f} is the new stream, which has to be written, so intermediates are saved, not "
        "avoided",
    )


register(
    Experiment(
        name="fused-kernel-traffic",
        title="What does a fused residual kernel spare?",
        claim="A fused kernel for x + F(LN(x)) avoids intermediate results.",
        source="Tutorials; flash-attn's dropout_add_layer_norm fuses addition and next norm",
        rows=(38,),
        measure=_measure_traffic,
        judge=judge_traffic,
        chart=Chart(value_title="passes over n d numbers"),
        method="Reads and writes counted for each step; resstream.kernels is such a kernel.",
        seeds=0,
    )
)
