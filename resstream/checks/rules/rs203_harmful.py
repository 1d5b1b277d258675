"""RS203: a write that the model is better off without."""

import numpy as np

from resstream.checks.experiments import Outcome
from resstream.checks.proof import HARM_NATS, change_trial, gain_of, plain
from resstream.checks.rule import Rule, Suspect
from resstream.checks.scene import Scene
from resstream.sweep.variants import scale, zero

BY_ESTIMATE, BY_SCREEN = 6, 4
"""How many candidates each way of ranking names."""

RULE = Rule(
    code="RS203",
    name="harmful write",
    stage="pollution",
    severity="error",
    what="The model predicts better without this write, or with its sign turned.",
    why="The layer writes something wrong: it may be of ordinary size and look like any other.",
    detection="Every write is taken away once on a few hundred tokens, and a first-order estimate "
    "is made on some more; the worst of both are taken away, and turned, on the whole text. "
    f"Confirmed if the loss falls by more than {HARM_NATS:g} nats with the interval below 0, after "
    "Holm's correction over all writes.",
    traps="Behind a polluted layer healthy layers do harm, since they read a stream that is not "
    "theirs: the culprit is repaired first, and harm counts only if it was there before. In 60 "
    "writes some are better off by chance: hence Holm.",
    fix="restore the layer from an earlier checkpoint, or remove the write",
    source="Nanda (2023) for the estimate; Holm (1979) for the correction.",
    example="resstream inject demo --fault sign_flip --layer 5 --write mlp --out broken\n"
    "resstream check broken",
    suspects=lambda scene: _suspects(scene),
)


def _suspects(scene: Scene) -> list[Suspect]:
    ranked = [
        *_worst(scene.estimates, BY_ESTIMATE),
        *_worst(scene.screened, BY_SCREEN),
    ]
    return [_suspect(scene, index) for index in dict.fromkeys(ranked)]


def _worst(values: np.ndarray, count: int) -> list[int]:
    return [int(i) for i in np.argsort(values) if np.isfinite(values[i])][:count]


def _suspect(scene: Scene, index: int) -> Suspect:
    readings = scene.readings

    def statement(outcome: Outcome) -> str:
        return f"{readings.writes[index].label} harms the model: {gain_of(outcome)}"

    return Suspect(
        code=RULE.code,
        index=index,
        trials=(
            change_trial(readings, index, "zero", zero),
            change_trial(readings, index, "flip the sign", scale(-1.0)),
        ),
        evidence=(
            plain(
                "first-order estimate of its zero ablation, nats per token", scene.estimates[index]
            ),
            plain("its zero ablation on a few tokens, nats per token", scene.screened[index]),
        ),
        statement=statement,
    )
