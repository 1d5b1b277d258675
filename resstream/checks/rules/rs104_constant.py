"""RS104: a write that is the same for every token."""

import numpy as np
from torch import Tensor

from resstream.checks.experiments import Outcome
from resstream.checks.proof import change_trial, plain
from resstream.checks.rule import Rule, Suspect
from resstream.checks.scene import Scene

CONSTANT = 0.95
_UNLIKE_PEERS = 0.2

_SCRIPT = """
import torch
import resstream as rs
model = rs.load("demo")
write = next(write for write in model.spec.writes if write.label == "L6 attn")
part, vector = model.module.get_submodule(write.module), torch.full((128,), 0.1)
part.register_forward_hook(lambda part, given, output: vector.expand_as(output).clone())
for finding in rs.check(model).findings:
    print(finding.code, finding.status, finding.statement)
""".strip()

RULE = Rule(
    code="RS104",
    name="constant write",
    stage="collapse",
    severity="warning",
    what="A write adds the same vector to every token: it acts as a bias.",
    why="The layer no longer looks at its input, so that its parameters are spent on one vector.",
    detection=f"Common mode |mean w|^2 / mean |w|^2 above {CONSTANT:g} without sinks, and above "
    f"its neighbours' by {_UNLIKE_PEERS:g}; confirmed if replacing the write by its own mean "
    "(first tokens left alone) changes the loss by no more than 0.01 nats.",
    traps="A large constant part is ordinary: taking the first attentions of SmolLM2 away costs 4 "
    "nats and replacing them by their mean 0.08, which is not nothing. Few tokens make everything "
    "look alike, since n tokens without anything in common have a common mode of 1/n.",
    fix="restore the layer from an earlier checkpoint, or fold the vector into a bias and remove "
    "the layer",
    source="Janiak et al. (2023), arXiv:2310.07325, for what mean ablation leaves.",
    example=f"cat > bias.py <<'END'\n{_SCRIPT}\nEND\npython bias.py",
    suspects=lambda scene: _suspects(scene),
)


def keep_mean(value: Tensor, base: Tensor) -> Tensor:
    """The mean over all but the first tokens, for all but the first tokens."""
    del base
    changed = value.clone()
    changed[:, 1:] = value[:, 1:].mean((0, 1))
    return changed


def _suspects(scene: Scene) -> list[Suspect]:
    readings, found = scene.readings, []
    for index, common in enumerate(readings.common_mode):
        near = readings.common_mode[readings.neighbours(index)]
        usual = float(np.nanmedian(near)) if np.isfinite(near).any() else 1.0
        if not (common > CONSTANT and common > usual + _UNLIKE_PEERS):
            continue
        label = readings.writes[index].label

        def statement(outcome: Outcome, label: str = label) -> str:
            del outcome
            return f"{label} is collapsed: it writes the same vector for every token"

        found.append(
            Suspect(
                code=RULE.code,
                index=index,
                trials=(change_trial(readings, index, "keep the mean", keep_mean),),
                evidence=(
                    plain("common mode of the write", common, CONSTANT),
                    plain("common mode of its neighbours (median)", usual),
                ),
                statement=statement,
            )
        )
    return found
