"""What does bfloat16 lose of the stream, of LayerScale and of its training?"""

from dataclasses import replace

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from resstream.analysis.losses import token_divergences
from resstream.nn.transformer import ResidualTransformer
from resstream.train.experiments.demo import demo_tokens, demo_transformer
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
from resstream.train.experiments.stacks import log_slope

_BF16 = "bfloat16 stream"
_FP32 = "float32 stream"


def _drift(n_writes: int, dtype: torch.dtype, width: int) -> float:
    """Relative error of a stream of that dtype after writes of constant size."""
    narrow = torch.zeros(width, dtype=dtype)
    wide = torch.zeros(width, dtype=torch.float64)
    for _ in range(n_writes):
        write = torch.randn(width)
        narrow += write.to(dtype)
        wide += write.to(dtype).double()
    return float((narrow.double() - wide).norm() / wide.norm())


def _measure_drift(size: Size) -> dict[Key, float]:
    counts = pick(size, tiny=(4, 16), quick=(16, 64, 256, 1024), full=(16, 64, 256, 1024, 4096))
    found: dict[Key, float] = {}
    for count in counts:
        found[(_BF16, count)] = _drift(count, torch.bfloat16, 4096)
        found[(_FP32, count)] = _drift(count, torch.float32, 4096)
    return found | _demo_divergences(size)


def _demo_divergences(size: Size) -> dict[Key, float]:
    """KL of bfloat16 runs of the embedded model to its float32 run, by dtype of the stream."""
    tokens, model = demo_tokens(pick(size, tiny=1, quick=8, full=32)), demo_transformer()
    found: dict[Key, float] = {}
    with torch.no_grad():
        clean = model(tokens)
        for name, kept in ((_FP32, "float32"), (_BF16, "compute")):
            narrow = ResidualTransformer(replace(model.config, stream_dtype=kept))
            narrow.load_state_dict(model.state_dict())
            logits = narrow.to(torch.bfloat16)(tokens).float()
            found[f"KL of the embedded model, nats, {name}"] = _mean_divergence(clean, logits)
    return found


def _mean_divergence(clean: Tensor, changed: Tensor) -> float:
    return float(token_divergences(clean, changed).mean())


def judge_drift(readings: Readings) -> Judgement:
    """The error grows as the square root of the count, and a float32 stream takes most of it."""
    power = log_slope(readings.places(_BF16), readings.line(_BF16))
    last = readings.places(_BF16)[-1]
    narrow, wide = readings.value(_BF16, last), readings.value(_FP32, last)
    kl_narrow, kl_wide = (
        readings.value(f"KL of the embedded model, nats, {name}") for name in (_BF16, _FP32)
    )
    return judged(
        0.3 < power < 0.7 and wide < 1e-3 * narrow and kl_wide < kl_narrow,
        f"true, and small: the error goes as writes^{power:.2f} and is {narrow:.2g} of the stream "
        f"after {last:.0f} equal writes (float32: {wide:.1g}). In the 8 blocks of the embedded "
        f"model, bfloat16 throughout costs {kl_narrow:.2g} nats of KL, with a float32 stream "
        f"{kl_wide:.2g}",
    )


register(
    Experiment(
        name="bf16-stream-drift",
        title="What does a bfloat16 stream lose over depth?",
        claim="Additions in bfloat16 drift over depth; keep the stream in float32.",
        source="Megatron-LM's --fp32-residual-connection (off by default); a random-walk estimate",
        rows=(35,),
        measure=_measure_drift,
        judge=judge_drift,
        chart=Chart(
            value_title="relative error of the stream",
            at_title="writes of equal size",
            log_value=True,
            log_at=True,
        ),
        method=(
            "Random writes added in bfloat16, float32 and float64; and the embedded model with "
            "bfloat16 weights, its stream in bfloat16 or float32, against itself in float32."
        ),
        seeds=5,
    )
)


def _write_error(ratio: float, width: int) -> float:
    """``||fl(x + w) - x - w|| / ||w||`` in bfloat16 where x is `ratio` times as large as w."""
    x = torch.randn(width).bfloat16()
    write = (torch.randn(width) / ratio).bfloat16()
    realised = (x + write).double() - x.double()
    return float((realised - write.double()).norm() / write.double().norm())


def _measure_write_error(size: Size) -> dict[Key, float]:
    width = pick(size, tiny=256, quick=65536, full=262144)
    return {("error of the write", r): _write_error(r, width) for r in (4, 16, 64, 256, 1024, 4096)}


def judge_write_error(readings: Readings) -> Judgement:
    """Proportional to the ratio, at 1.7e-3 of it, until nothing is left."""
    name = "error of the write"
    small = [at for at in readings.places(name) if at <= 64]
    power = log_slope(small, [readings.value(name, at) for at in small])
    per_ratio = readings.value(name, 64) / 64
    return judged(
        abs(power - 1) < 0.15 and 1e-3 < per_ratio < 3e-3,
        f"the error is {per_ratio:.2g} times rms(x) / rms(w) (power {power:.2f}): "
        f"{readings.value(name, 64):.2g} of the write at 64, "
        f"{readings.value(name, 256):.2g} at 256, {readings.value(name, 4096):.2g} at 4096. It is "
        "this ratio that matters, and it grows with depth in Pre-LN, so Pre-LN is not the safer "
        "of the two in bfloat16",
    )


register(
    Experiment(
        name="bf16-write-error",
        title="When does bfloat16 lose a write in the addition?",
        claim="The share of a write that bfloat16 loses is proportional to rms(x) / rms(w).",
        source="Rounding of a sum: half a unit in the last place of x against w",
        rows=(20, 35),
        measure=_measure_write_error,
        judge=judge_write_error,
        chart=Chart(
            value_title="error of the realised write, relative to the write",
            at_title="rms of the stream / rms of the write",
            log_value=True,
            log_at=True,
        ),
        method="One addition of Gaussian vectors in bfloat16.",
    )
)


def _lost_update(start: float, rate: float) -> float:
    """Share of parameters at `start` in bfloat16 that a step of `rate` leaves where they were."""
    values = (start * (1 + 0.1 * torch.rand(4096))).bfloat16()
    return float((values - rate == values).float().mean())


def _measure_layer_scale(size: Size) -> dict[Key, float]:
    width = pick(size, tiny=256, quick=65536, full=262144)
    scale = torch.tensor(1e-4)
    x, branch = torch.randn(width).bfloat16(), torch.randn(width).bfloat16()
    write = scale.bfloat16() * branch
    after = x + write
    realised = (after - x).float()
    return {
        "value: relative error of 1e-4": float((scale.bfloat16().float() / scale - 1).abs()),
        "value: 1e-8 becomes zero": float(torch.tensor(1e-8).bfloat16() == 0),
        "value: 1e-8 in float16 becomes zero": float(torch.tensor(1e-8).half() == 0),
        "write: share of channels unchanged": float((after == x).float().mean()),
        "write: cosine of what was added": float(F.cosine_similarity(realised, write.float(), 0)),
        "update: share lost at 1e-4, step 1e-5": _lost_update(1e-4, 1e-5),
        "update: share lost at 1e-4, step 1e-6": _lost_update(1e-4, 1e-6),
        "update: share lost at 0.1, step 1e-4": _lost_update(0.1, 1e-4),
        "update: share lost at 1, step 1e-3": _lost_update(1.0, 1e-3),
    }


def judge_layer_scale(readings: Readings) -> Judgement:
    """Claimed: the value underflows."""
    value = readings.value("value: relative error of 1e-4")
    lost = readings.value("write: share of channels unchanged")
    step = readings.value("update: share lost at 1e-4, step 1e-6")
    big = readings.value("update: share lost at 1, step 1e-3")
    return judged(
        value > 0.5 or readings.value("value: 1e-8 becomes zero") == 1.0,
        f"the value is kept (error {value:.1g}; even 1e-8 is no zero, only float16 makes it one), "
        f"and so is the update (a step of 1e-6 on 1e-4 is lost in {step:.0%} of parameters; it is "
        f"large parameters that stall: {big:.0%} at 1 with a step of 1e-3). What is lost is the "
        f"write in the addition: {lost:.1%} of the channels stay as they were, and what is added "
        f"has a cosine of {readings.value('write: cosine of what was added'):.2f} with the write",
    )


register(
    Experiment(
        name="layer-scale-bf16",
        title="LayerScale 1e-4 in bfloat16: is value, write or update lost?",
        claim="LayerScale started at 1e-4 underflows in bfloat16.",
        source="Tutorials; bfloat16 has the exponent range of float32",
        rows=(28, 27),
        measure=_measure_layer_scale,
        judge=judge_layer_scale,
        chart=Chart(value_title="share lost, or error (0: nothing is lost)"),
        method="x and branch N(0, 1) in bfloat16, scale 1e-4; steps on bfloat16 parameters.",
    )
)
