"""RS302: several blocks in a row that do nothing."""

import numpy as np

from resstream.checks.experiments import Lab, Trial
from resstream.checks.proof import IDLE_NATS, effect_evidence, plain
from resstream.checks.readings import Readings
from resstream.checks.report import Finding
from resstream.checks.rule import Rule
from resstream.sweep.variants import zero

STILL = 0.02
IN_A_ROW = 3

_SCRIPT = """
import resstream as rs
model = rs.load("demo")
for write in model.spec.writes:
    if 4 <= write.layer <= 6:
        model.module.get_parameter(write.output_matrix).data.mul_(1e-5)
for finding in rs.check(model).findings:
    print(finding.code, finding.status, finding.statement)
""".strip()

RULE = Rule(
    code="RS302",
    name="stalled stream",
    stage="stream",
    severity="warning",
    what=f"At least {IN_A_ROW} blocks in a row leave the stream as it is.",
    why="A whole stretch of the network is spent on nothing; in training, a sign that gates never "
    "opened or that a learning rate was zero for them.",
    detection=f"All writes of the stretch are below {STILL:g} of the stream's norm (medians); "
    f"confirmed if taking all of them away together changes the loss by no more than {IDLE_NATS:g} "
    "nats.",
    traps="Models that are born with closed gates (ReZero, LayerScale, AdaLN-Zero) stand still "
    "everywhere: a stall is only reported beside blocks that move. One faint block is RS102.",
    fix="restore the blocks, or remove them; in training, look at their gates and learning rates",
    source="Sun et al. (2025), The Curse of Depth in Large Language Models.",
    example=f"cat > stall.py <<'END'\n{_SCRIPT}\nEND\npython stall.py",
)


def look(readings: Readings, lab: Lab) -> list[Finding]:
    """Stretches that do nothing, confirmed by taking all of their writes away at once."""
    if not lab.informative:
        return []
    return [finding for stretch in _stretches(readings) for finding in _try(stretch, readings, lab)]


def _stretches(readings: Readings) -> list[list[int]]:
    """Runs of still layers, as rows of their writes; none if the whole model is still."""
    layers = sorted({write.layer for write in readings.writes})
    rows = {
        layer: [i for i, write in enumerate(readings.writes) if write.layer == layer]
        for layer in layers
    }
    still = [bool(np.all(readings.relative_norm[rows[layer]] < STILL)) for layer in layers]
    if all(still):
        return []
    found: list[list[int]] = []
    run: list[int] = []
    for layer, is_still in [*zip(layers, still, strict=True), (-1, False)]:
        if is_still:
            run.append(layer)
            continue
        if len(run) >= IN_A_ROW:
            found.append([row for each in run for row in rows[each]])
        run = []
    return found


def _try(rows: list[int], readings: Readings, lab: Lab) -> list[Finding]:
    first, *rest = [readings.writes[row] for row in rows]
    trial = Trial(write=first, also=tuple(rest), label="zero the whole stretch", change=zero)
    (outcome,) = lab.run([trial])
    if not (outcome.low >= -IDLE_NATS and outcome.high <= IDLE_NATS):
        return []
    last = rest[-1].layer if rest else first.layer
    largest = float(readings.relative_norm[rows].max())
    return [
        Finding(
            code=RULE.code,
            status="confirmed",
            severity=RULE.severity,
            layer=first.layer,
            write=None,
            site=None,
            statement=f"the stream stalls: blocks {first.layer} to {last} change nothing",
            evidence=(
                plain("largest write norm over stream norm in the stretch", largest, STILL),
                effect_evidence(outcome, IDLE_NATS),
            ),
            remedy=RULE.fix,
        )
    ]
