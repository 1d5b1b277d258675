"""RS204: a write that wipes out what stands in the stream, to no good."""

import numpy as np

from resstream.checks.experiments import Outcome
from resstream.checks.proof import change_trial, gain_of, plain
from resstream.checks.rule import Rule, Suspect
from resstream.checks.scene import Scene
from resstream.sweep.variants import zero

AGAINST, ERASED = -0.5, 0.3

_SCRIPT = """
import resstream as rs
model = rs.load("demo")
write = next(write for write in model.spec.writes if write.label == "L5 mlp")
part = model.module.get_submodule(write.module)
part.register_forward_hook(lambda part, given, output: output - 3 * given[0])
for finding in rs.check(model, select="RS204").findings:
    print(finding.code, finding.status, finding.statement)
""".strip()

RULE = Rule(
    code="RS204",
    name="erasing write",
    stage="pollution",
    severity="error",
    what="A write points against the stream and erases a large part of it, and the model is "
    "better without that.",
    why="What earlier layers wrote is gone for the layers behind.",
    detection=f"Median cosine with the stream below {AGAINST:g} and more than {ERASED:g} of the "
    "stream erased; confirmed if the loss falls when the write is taken away.",
    traps="Erasing is a normal thing to do (Janiak et al.): last layers of healthy models remove "
    "what earlier ones wrote. Without harm nothing is reported.",
    fix="restore the layer from an earlier checkpoint, or remove the write",
    source="Janiak et al. (2023), An Adversarial Example for Direct Logit Attribution, "
    "arXiv:2310.07325.",
    example=f"cat > erase.py <<'END'\n{_SCRIPT}\nEND\npython erase.py",
    suspects=lambda scene: _suspects(scene),
)


def _suspects(scene: Scene) -> list[Suspect]:
    readings = scene.readings
    erasing = (readings.cosine < AGAINST) & (readings.erase_fraction > ERASED)
    return [_suspect(scene, int(i)) for i in np.flatnonzero(erasing)]


def _suspect(scene: Scene, index: int) -> Suspect:
    readings = scene.readings

    def statement(outcome: Outcome) -> str:
        share = readings.erase_fraction[index]
        return (
            f"{readings.writes[index].label} erases {share:.0%} of the stream; {gain_of(outcome)}"
        )

    return Suspect(
        code=RULE.code,
        index=index,
        trials=(change_trial(readings, index, "zero", zero),),
        evidence=(
            plain("cosine of write and stream (median)", readings.cosine[index], AGAINST),
            plain("part of the stream that is erased", readings.erase_fraction[index], ERASED),
        ),
        statement=statement,
    )
