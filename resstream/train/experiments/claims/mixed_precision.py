"""What do mixed precision and broadcasting do in clipping and at the addition?"""

import torch
from torch import nn

from resstream.nn.write import residual_write
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

_SCALE = 2.0**14
_CLIP = 1.0


def _clipped_norm(*, unscale_first: bool, width: int) -> float:
    """Norm of the true gradient that the optimiser gets, clipped to `_CLIP`."""
    model, x = nn.Linear(width, width), torch.randn(8, width)
    loss = 3.0 * model(x).square().sum()
    (loss * _SCALE).backward()
    parameters = list(model.parameters())
    if unscale_first:
        _divide(parameters)
    nn.utils.clip_grad_norm_(parameters, _CLIP)
    if not unscale_first:
        _divide(parameters)
    return float(nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))


def _divide(parameters: list[nn.Parameter]) -> None:
    for parameter in parameters:
        assert parameter.grad is not None
        parameter.grad /= _SCALE


def _measure_clip(size: Size) -> dict[Key, float]:
    width = pick(size, tiny=2, quick=16, full=64)
    return {
        "gradient norm, unscaled and then clipped": _clipped_norm(unscale_first=True, width=width),
        "gradient norm, clipped and then unscaled": _clipped_norm(unscale_first=False, width=width),
    }


def judge_clip(readings: Readings) -> Judgement:
    """The right order gives the threshold, the wrong one the threshold over the scale."""
    right = readings.value("gradient norm, unscaled and then clipped")
    wrong = readings.value("gradient norm, clipped and then unscaled")
    return judged(
        abs(right - _CLIP) < 1e-3 and wrong < 0.01 * _CLIP,
        f"clipping at {_CLIP:g} leaves a norm of {right:.3g} where the gradients were unscaled "
        f"first, and {wrong:.2g} where they were not: the step is smaller by the loss scale "
        f"({_SCALE:g})",
    )


register(
    Experiment(
        name="unscale-before-clipping",
        title="Must gradients be unscaled before they are clipped?",
        claim="With a GradScaler, call unscale_ before clip_grad_norm_.",
        source="PyTorch documentation, automatic mixed precision examples",
        rows=(36, 44),
        measure=_measure_clip,
        judge=judge_clip,
        chart=Chart(value_title="norm of the gradient that the optimiser gets", log_value=True),
        method="One linear layer, loss scale 2^14, clipping at 1, in both orders.",
    )
)


def _bits(first: torch.dtype, second: torch.dtype) -> float:
    return float((torch.zeros(2, dtype=first) + torch.zeros(2, dtype=second)).dtype.itemsize * 8)


def _refused(first: tuple[int, ...], second: tuple[int, ...], *, ours: bool) -> float:
    x, write = torch.zeros(first), torch.zeros(second)
    try:
        residual_write(x, write) if ours else x + write
    except (ValueError, RuntimeError):
        return 1.0
    return 0.0


def _measure_promotion(size: Size) -> dict[Key, float]:
    width = pick(size, tiny=3, quick=8, full=64)
    whole = (2, 4, width)
    return {
        "bits of bfloat16 + float32": _bits(torch.bfloat16, torch.float32),
        "bits of bfloat16 + bfloat16": _bits(torch.bfloat16, torch.bfloat16),
        "bits of bfloat16 + float16": _bits(torch.bfloat16, torch.float16),
        "torch refuses a write of [batch, pos, 1]": _refused(whole, (2, 4, 1), ours=False),
        "torch refuses a write of [pos, width]": _refused(whole, (4, width), ours=False),
        "resstream refuses [batch, pos, 1]": _refused(whole, (2, 4, 1), ours=True),
        "resstream refuses [pos, width]": _refused(whole, (4, width), ours=True),
    }


def judge_promotion(readings: Readings) -> Judgement:
    """Does the addition itself insist on one dtype and one shape?"""
    promoted = readings.value("bits of bfloat16 + float32") == 32.0
    shapes = ("[batch, pos, 1]", "[pos, width]")
    silent = all(readings.value(f"torch refuses a write of {shape}") == 0.0 for shape in shapes)
    ours = all(readings.value(f"resstream refuses {shape}") == 1.0 for shape in shapes)
    return judged(
        not promoted and not silent,
        "bfloat16 + float32 becomes float32 without a word, and a write of shape [batch, pos, 1] "
        "or [pos, width] is broadcast over the stream; an error comes only where shapes can't be "
        f"broadcast. residual_write of this package {'refuses' if ours else 'TAKES'} both shapes",
    )


register(
    Experiment(
        name="dtype-and-shape-at-the-addition",
        title="Does the addition insist on one dtype and one shape?",
        claim="Both ends of the addition must have one dtype and one shape, or it fails.",
        source="Tutorials on residual connections; torch.result_type and broadcasting",
        rows=(2, 37),
        measure=_measure_promotion,
        judge=judge_promotion,
        chart=Chart(value_title="bits of the sum; refused (1) or not (0)"),
        method="Additions of zeros of different dtypes and shapes.",
        seeds=0,
    )
)
