"""RS105: attention that looks everywhere alike."""

from collections.abc import Mapping

import numpy as np

from resstream.checks.experiments import Outcome
from resstream.checks.proof import change_trial, plain
from resstream.checks.rule import Rule, Suspect
from resstream.checks.scene import Scene
from resstream.sweep.variants import zero

EVEN = 0.98
_PEERS_BELOW = 0.95

_SCRIPT = """
import resstream as rs
model = rs.load("demo")
model.module.get_parameter("model.blocks.6.attn.q_proj.weight").data.mul_(1e-3)
for finding in rs.check(model).findings:
    print(finding.code, finding.status, finding.statement)
""".strip()

RULE = Rule(
    code="RS105",
    name="even attention",
    stage="collapse",
    severity="warning",
    what="Every head of a layer attends evenly to all it can see, unlike the layers around it.",
    why="Attention that does not choose moves no information: its scores have collapsed to one "
    "value.",
    detection=f"Normalised entropy above {EVEN:g} in all heads, while the neighbouring layers' "
    f"median is below {_PEERS_BELOW:g}; confirmed if taking the write away changes nothing. An "
    "all-zero query or key matrix is reported as RS401 without any experiment.",
    traps="Models may be built to attend evenly: then all layers do, and none stands out. "
    "Averaging can be useful: without a flat ablation the rule stays silent.",
    fix="restore the query and key matrices from an earlier checkpoint",
    source="Zhai et al. (2023), Stabilizing Transformer Training by Preventing Attention Entropy "
    "Collapse (the opposite failure); Dong et al. (2021), Attention is not all you need.",
    example=f"cat > even.py <<'END'\n{_SCRIPT}\nEND\npython even.py",
    suspects=lambda scene: _suspects(scene),
)


def _suspects(scene: Scene) -> list[Suspect]:
    return [
        idle_suspect(
            scene,
            index,
            RULE.code,
            "is collapsed: all of its heads attend evenly to everything, and it changes nothing",
            {"entropy over that of even attention, least of all heads": float(heads.min())},
        )
        for index, heads in _attention_rows(scene, scene.entropies)
        if heads.min() > EVEN and _others(scene, scene.entropies, index) < _PEERS_BELOW
    ]


def idle_suspect(
    scene: Scene, index: int, code: str, claim: str, numbers: Mapping[str, float]
) -> Suspect:
    """A suspect that is confirmed if taking the write away changes nothing."""
    label = scene.writes[index].label

    def statement(outcome: Outcome) -> str:
        del outcome
        return f"{label} {claim}"

    return Suspect(
        code=code,
        index=index,
        trials=(change_trial(scene.readings, index, "zero", zero),),
        evidence=tuple(plain(name, value) for name, value in numbers.items()),
        statement=statement,
    )


def _attention_rows(
    scene: Scene, readings: Mapping[int, np.ndarray]
) -> list[tuple[int, np.ndarray]]:
    return [
        (index, readings[write.layer])
        for index, write in enumerate(scene.writes)
        if write.name == "attn" and write.layer in readings
    ]


def _others(scene: Scene, readings: Mapping[int, np.ndarray], index: int) -> float:
    near = [scene.writes[row].layer for row in scene.readings.neighbours(index)]
    values = [float(np.median(readings[layer])) for layer in near if layer in readings]
    return float(np.median(values)) if values else 1.0
