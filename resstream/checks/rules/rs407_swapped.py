"""RS407: two layers in each other's place."""

import numpy as np

from resstream.checks.experiments import Outcome, Trial
from resstream.checks.proof import gain_of, plain
from resstream.checks.repairs import exchanged_blocks
from resstream.checks.rule import Rule, Suspect
from resstream.checks.scene import Scene

_ALL_PAIRS_UP_TO = 12
_WORTH = 0.005
_TRIED = 4

RULE = Rule(
    code="RS407",
    name="swapped layers",
    stage="pollution",
    severity="error",
    what="Two layers stand in each other's place.",
    why="A merge or conversion mixed up indices (10 before 2 in a sorted list of names).",
    detection=f"Blocks are exchanged on a few hundred tokens: all pairs in models of up to "
    f"{_ALL_PAIRS_UP_TO} blocks, neighbours in deeper ones; the pairs that help most are exchanged "
    "on the whole text. Confirmed if the loss falls, with Holm's correction.",
    traps="Middle layers of deep models can be exchanged for almost nothing (Lad et al. 2024): a "
    "swap that costs nothing is not found, and nothing is reported without a gain in loss.",
    fix="exchange the two layers",
    source="Lad et al. (2024), The Remarkable Robustness of LLMs, arXiv:2406.19384.",
    example="resstream inject demo --fault swap --severity 1 --layer 2 --out broken\n"
    "resstream check broken",
    suspects=lambda scene: _suspects(scene),
)


def _suspects(scene: Scene) -> list[Suspect]:
    if not scene.informative or scene.lab.standing:
        return []
    n_layers = scene.model.spec.n_layers
    reach = n_layers if n_layers <= _ALL_PAIRS_UP_TO else 1
    pairs = [
        (one, other)
        for one in range(n_layers)
        for other in range(one + 1, min(n_layers, one + reach + 1))
    ]
    trials = [trial for pair in pairs if (trial := _trial(scene, *pair)) is not None]
    if not trials:
        return []
    effects = scene.lab.screen(trials)
    order = [int(i) for i in np.argsort(effects) if effects[i] < -_WORTH][:_TRIED]
    return [_suspect(scene, trials[i], float(effects[i])) for i in order]


def _trial(scene: Scene, one: int, other: int) -> Trial | None:
    weights = exchanged_blocks(scene.model, one, other)
    if not weights:
        return None
    write = scene.model.spec.blocks[one].writes[0]
    return Trial(write=write, label=f"exchange layers {one} and {other}", weights=weights)


def _suspect(scene: Scene, trial: Trial, screened: float) -> Suspect:
    def statement(outcome: Outcome) -> str:
        layers = trial.label.removeprefix("exchange ")
        return f"{layers} stand in each other's place; {gain_of(outcome)}"

    return Suspect(
        code=RULE.code,
        index=scene.writes.index(trial.write),
        trials=(trial,),
        evidence=(plain("change of the loss on a few tokens, nats per token", screened),),
        statement=statement,
        whole_layer=True,
    )
