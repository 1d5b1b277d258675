"""RS201: a write many times as large as its neighbours'."""

import numpy as np

from resstream.checks.experiments import Outcome, Trial
from resstream.checks.proof import HARM_NATS, UNUSUAL_Z, change_trial, gain_of, plain, size_evidence
from resstream.checks.rule import Rule, Suspect
from resstream.checks.scene import Scene
from resstream.checks.sizes import size_trial, weight_size
from resstream.sweep.variants import scale

LARGE_RATIO = 2.5
"""A write this many times its neighbours' size may be suspected."""
LARGE_WEIGHTS = 1.4
"""... and weights this many times theirs, which nothing before them can lift."""
_WEIGHT_Z = 4.0
_SMALLER = (0.5, 0.25)
_TRIED = 4

RULE = Rule(
    code="RS201",
    name="oversized write",
    stage="pollution",
    severity="error",
    what="A write is many times as large as its neighbours' and drowns the stream.",
    why="What the layers before it wrote becomes small beside it, and layers behind it read a "
    "stream that is mostly this one write.",
    detection=f"Write norm above {LARGE_RATIO:g} times the neighbours' and {UNUSUAL_Z:g} robust "
    f"standard deviations away in the log, or the same of the weights behind it (above "
    f"{LARGE_WEIGHTS:g}), or a write whose shrinking helps more than its removal, which helps as "
    "well; confirmed if the loss falls when it is brought to their size (Holm over "
    "all writes). Where the loss says nothing, bringing it to size must change the output five "
    "times as much as taking a neighbour away does.",
    traps="The first MLP of SmolLM2 writes 13 times the stream, one late MLP makes massive "
    "activations, and the last block's norm jumps: all are needed, and rescaling them does harm. "
    "Behind a true culprit later writes are large as well; a write that stands out from both sides "
    "is held against the side before it, and victims are judged with the culprit repaired.",
    fix="bring the output matrix down to its neighbours' size, or restore the layer from an "
    "earlier checkpoint; in training, a LayerScale or a smaller learning rate for this layer",
    source="Sun et al. (2024), Massive Activations in Large Language Models.",
    example="resstream check demo:polluted",
    suspects=lambda scene: _suspects(scene),
)


def _suspects(scene: Scene) -> list[Suspect]:
    smaller = _better_smaller(scene)
    return [
        item
        for index in range(len(scene.writes))
        for item in _look(scene, index, smaller.get(index, ()))
    ]


def _better_smaller(scene: Scene) -> dict[int, tuple[Trial, ...]]:
    """Writes that do harm, but less so if they shrink than if they are taken away."""
    if not scene.informative:
        return {}
    order = [int(row) for row in np.argsort(scene.screened)[:_TRIED]]
    rows = [row for row in order if scene.screened[row] < -HARM_NATS]
    trials = [
        change_trial(scene.readings, row, f"rescale by {factor:g}", scale(factor))
        for row in rows
        for factor in _SMALLER
    ]
    if not trials:
        return {}
    effects = scene.lab.screen(trials).reshape(len(rows), len(_SMALLER))
    best = effects.argmin(1)
    return {
        row: (trials[place * len(_SMALLER) + int(best[place])],)
        for place, row in enumerate(rows)
        if effects[place].min() < scene.screened[row] - HARM_NATS
    }


def _look(scene: Scene, index: int, smaller: tuple[Trial, ...]) -> list[Suspect]:
    readings = scene.readings
    ratio, size = float(readings.ratio[index]), weight_size(scene, index)
    trials = list(smaller)
    if readings.norm_z[index] > UNUSUAL_Z and ratio > LARGE_RATIO and np.isfinite(ratio):
        label = f"rescale by {1 / ratio:.3g}"
        trials.append(change_trial(readings, index, label, scale(1 / ratio)))
    if scene.informative and size.z > _WEIGHT_Z and size.ratio > LARGE_WEIGHTS:
        trials.append(size_trial(scene, index, size))
    if not trials:
        return []

    def statement(outcome: Outcome) -> str:
        return (
            f"{readings.writes[index].label} pollutes the stream: its write is {ratio:.3g} times "
            f"its neighbours' size; {gain_of(outcome)}"
        )

    return [
        Suspect(
            code=RULE.code,
            index=index,
            trials=tuple(trials),
            evidence=(
                *size_evidence(readings, index, LARGE_RATIO),
                plain(size.name, size.ratio),
            ),
            statement=statement,
        )
    ]
