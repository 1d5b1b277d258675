"""RS101: a write that is exactly nothing."""

from resstream.checks.rule import Rule, Suspect
from resstream.checks.rules.rs102_faint import quiet_suspects
from resstream.checks.scene import Scene

RULE = Rule(
    code="RS101",
    name="zero write",
    stage="collapse",
    severity="error",
    what="A write adds exactly nothing to the stream.",
    why="The layer costs memory and time and does nothing; its output matrix, its gate or the "
    "norm before it has been lost.",
    detection="The median write norm is 0 while writes of the same kind up to three blocks away "
    "are not; taking the write away changes nothing.",
    traps="Models that are born with closed gates (ReZero, LayerScale, zero-initialised output "
    "matrices) write nothing anywhere: a write is only held against its neighbours, and theirs are "
    "zero too.",
    fix="restore the output matrix (or the gain, or the gate) from an earlier checkpoint; "
    "a block that writes nothing can also be removed",
    source="Sun et al. (2025), The Curse of Depth in Large Language Models.",
    example="resstream inject demo --fault zero --layer 4 --write attn --out broken\n"
    "resstream check broken",
    suspects=lambda scene: _suspects(scene),
)


def _suspects(scene: Scene) -> list[Suspect]:
    return [item for item in quiet_suspects(scene) if item.code == RULE.code]
