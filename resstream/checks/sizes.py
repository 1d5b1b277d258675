"""How large are the weights behind a write, beside those of its neighbours?"""

import math
from dataclasses import dataclass

from resstream.checks.experiments import Trial
from resstream.checks.proof import change_trial
from resstream.checks.repairs import scaled_gain
from resstream.checks.scene import Scene
from resstream.sweep.variants import scale

_FLOOR = 0.1


@dataclass(frozen=True, slots=True)
class WeightSize:
    """The size that stands out most: of the output matrix, or of the gain before the write."""

    name: str
    is_gain: bool
    """True for the gain: what it does to attention is not undone by rescaling the write."""
    ratio: float
    """Over the median of its neighbours; 1 where nothing is known."""
    z: float


def weight_size(scene: Scene, index: int) -> WeightSize:
    """Compare output matrix and gain of a write with those of the same place in other layers."""
    write = scene.writes[index]
    names = {
        "norm of the output matrix over its neighbours'": write.output_matrix,
        "norm of the gain over its neighbours'": f"{write.reader}.weight",
    }
    found = WeightSize("norm of the weights over their neighbours'", False, 1.0, 0.0)
    for label, name in names.items():
        reading = scene.weights.find(name)
        if reading is None or reading.layer is None:
            continue
        centre, z = scene.weights.score(reading, "norm", floor=_FLOOR)
        ratio = reading.norm / centre if centre > 0 else math.nan
        if math.isfinite(ratio) and abs(z) > abs(found.z):
            found = WeightSize(label, name != write.output_matrix, ratio, z)
    return found


def size_trial(scene: Scene, index: int, size: WeightSize) -> Trial:
    """Bring the weights that stand out (or else the write) to their neighbours' size."""
    write, factor = scene.writes[index], 1 / size.ratio
    weights = scaled_gain(scene.model, write, factor) if size.is_gain else {}
    if weights:
        label = f"multiply the gain before it by {factor:.3g}"
        return Trial(write=write, label=label, weights=weights)
    return change_trial(scene.readings, index, f"rescale by {factor:.3g}", scale(factor))
