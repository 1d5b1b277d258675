"""RS102: a write that is next to nothing beside its neighbours'."""

import numpy as np

from resstream.checks.experiments import Outcome
from resstream.checks.proof import UNUSUAL_Z, change_trial, size_evidence
from resstream.checks.rule import Rule, Suspect
from resstream.checks.scene import Scene
from resstream.sweep.variants import zero

FAINT_RATIO = 0.02
"""A write this small a part of its neighbours' size may be suspected."""

RULE = Rule(
    code="RS102",
    name="faint write",
    stage="collapse",
    severity="warning",
    what="A write is next to nothing beside its neighbours', and changes nothing.",
    why="The layer has collapsed: it runs, and the model would be the same without it.",
    detection=f"Median write norm below {FAINT_RATIO:g} of the neighbours' and at least "
    f"{UNUSUAL_Z:g} robust standard deviations from theirs in the log; confirmed if the whole "
    "interval of its zero ablation lies within 0.01 nats of nothing (where the loss says nothing: "
    "if the output moves by less than a twentieth of what a neighbour's ablation does).",
    traps="Attention that can be taken away for nothing is ordinary in deep models and not faint: "
    "small effect alone is never reported. Behind a polluted layer all writes look small beside "
    "the stream: norms are compared with norms, and with the culprit's repair in place.",
    fix="rescale the output matrix or the norm's gain to its neighbours' size, or restore the "
    "layer from an earlier checkpoint",
    source="Sun et al. (2025), The Curse of Depth in Large Language Models.",
    example="resstream check demo:collapsed",
    suspects=lambda scene: [item for item in quiet_suspects(scene) if item.code == "RS102"],
)


def quiet_suspects(scene: Scene) -> list[Suspect]:
    """Writes that are zero (RS101) or next to nothing (RS102) beside their neighbours'."""
    readings = scene.readings
    quiet = (readings.norm_z < -UNUSUAL_Z) & (readings.ratio < FAINT_RATIO)
    return [_suspect(scene, int(i)) for i in np.flatnonzero(quiet)]


def _suspect(scene: Scene, index: int) -> Suspect:
    readings = scene.readings
    label, ratio = readings.writes[index].label, float(readings.ratio[index])
    is_zero = bool(readings.write_norm[index] == 0)

    def statement(outcome: Outcome) -> str:
        del outcome
        if is_zero:
            return f"{label} is collapsed: it writes exactly nothing"
        return (
            f"{label} is collapsed: its write is {ratio:.2g} of its neighbours' size and "
            "changes nothing"
        )

    return Suspect(
        code="RS101" if is_zero else "RS102",
        index=index,
        trials=(change_trial(readings, index, "zero", zero),),
        evidence=size_evidence(readings, index, FAINT_RATIO),
        statement=statement,
    )
