"""RS103: a write that still matters, and would matter more at its proper size."""

from resstream.checks.experiments import Outcome, Trial
from resstream.checks.proof import UNUSUAL_Z, change_trial, gain_of, plain, size_evidence
from resstream.checks.rule import Rule, Suspect
from resstream.checks.rules.rs102_faint import FAINT_RATIO
from resstream.checks.scene import Scene
from resstream.checks.sizes import size_trial, weight_size
from resstream.sweep.variants import scale

SMALL_RATIO = 0.6

RULE = Rule(
    code="RS103",
    name="starved write",
    stage="pollution",
    severity="error",
    what="A write is much smaller than its neighbours', and the model is better with it larger.",
    why="A gate, gain or matrix has shrunk (weight decay on a scale, a bad merge, a lost factor): "
    "the layer still knows what to write, and is not heard.",
    detection=f"Write norm, or norm of the output matrix or of the gain before it, below "
    f"{SMALL_RATIO:g} of its neighbours' and {UNUSUAL_Z:g} robust standard deviations away; "
    "confirmed if the loss falls when the write is brought to its neighbours' size, with Holm's "
    "correction over all writes.",
    traps="Many healthy writes are small: without the gain in loss nothing is reported. Where the "
    "loss says nothing (random models) the rule is not used.",
    fix="rescale the output matrix or the norm's gain to its neighbours' size, or restore them",
    source="Touvron et al. (2021), Going deeper with Image Transformers (LayerScale).",
    example="resstream inject demo --fault scale --severity 0.1 --layer 6 --write mlp "
    "--out broken\nresstream check broken",
    suspects=lambda scene: _suspects(scene),
)


def _suspects(scene: Scene) -> list[Suspect]:
    if not scene.informative:
        return []
    return [item for i in range(len(scene.writes)) for item in _look(scene, i)]


def _look(scene: Scene, index: int) -> list[Suspect]:
    readings = scene.readings
    ratio, size = float(readings.ratio[index]), weight_size(scene, index)
    trials: list[Trial] = []
    if size.z < -UNUSUAL_Z and FAINT_RATIO <= size.ratio < SMALL_RATIO:
        trials.append(size_trial(scene, index, size))
    if readings.norm_z[index] < -UNUSUAL_Z and FAINT_RATIO <= ratio < SMALL_RATIO:
        label = f"rescale by {1 / ratio:.3g}"
        trials.append(change_trial(readings, index, label, scale(1 / ratio)))
    if not trials:
        return []
    evidence = (*size_evidence(readings, index, SMALL_RATIO), plain(size.name, size.ratio))

    def statement(outcome: Outcome) -> str:
        return (
            f"{readings.writes[index].label} is starved: it writes "
            f"{min(ratio, size.ratio):.2g} of what its neighbours do; {gain_of(outcome)}"
        )

    return [
        Suspect(
            code=RULE.code,
            index=index,
            trials=tuple(trials),
            evidence=evidence,
            statement=statement,
        )
    ]
