"""RS404: one weight out of all proportion."""

import math

import numpy as np

from resstream.checks.experiments import Outcome, Trial
from resstream.checks.proof import gain_of, plain
from resstream.checks.repairs import patched_value
from resstream.checks.report import Evidence
from resstream.checks.rule import Rule, Suspect
from resstream.checks.scene import Scene
from resstream.checks.weight_facts import WeightFact
from resstream.checks.weights import MatrixReading, WeightTable

LONELY = 4.0
_ABSURD = 1e4

RULE = Rule(
    code="RS404",
    name="outlier weight",
    stage="pollution",
    severity="error",
    what="A single weight is far larger than every other in its matrix.",
    why="A flipped exponent bit (memory, disk, transfer) turns 0.01 into 655: one number that "
    "floods a channel.",
    detection=f"The largest magnitude is at least {LONELY:g} times the second largest, and that "
    "ratio is larger than in the same matrix of any other layer; confirmed if the loss falls when "
    f"the weight is set to 0. By weights alone it is a suspicion, and a fact from {_ABSURD:g} "
    "times on.",
    traps="Trained matrices have large weights (30 standard deviations in SmolLM2), but not one "
    "alone: the second largest is of the same size (ratio below 1.6).",
    fix="restore the weight from an earlier checkpoint, or set it to 0",
    source="Bit-flip faults: Li et al. (2017), Understanding Error Propagation in Deep Learning "
    "Neural Network Accelerators.",
    example="resstream inject demo --fault bit_flip --severity 30 --layer 4 --write mlp "
    "--out broken\nresstream check broken",
    suspects=lambda scene: _suspects(scene),
)


def lonely(table: WeightTable) -> list[tuple[MatrixReading, float]]:
    """Matrices with one weight that stands alone, and how far it does."""
    found: list[tuple[MatrixReading, float]] = []
    for own in table.readings:
        ratio = loneliness(own)
        if not own.is_matrix or not ratio >= LONELY:
            continue
        peers = [loneliness(peer) for peer in table.peers(own)] if own.layer is not None else []
        if ratio > 2 * max(peers, default=1.0):
            found.append((own, ratio))
    return found


def loneliness(own: MatrixReading) -> float:
    """How many times the second largest magnitude the largest is."""
    if own.peak == 0:
        return 1.0
    return own.peak / own.runner_up if own.runner_up > 0 else math.inf


def _evidence(own: MatrixReading, ratio: float) -> tuple[Evidence, ...]:
    return (
        plain("largest over second largest magnitude in the matrix", ratio, LONELY),
        plain("its magnitude", own.peak),
    )


def _suspects(scene: Scene) -> list[Suspect]:
    if not scene.lab.readable:
        return []
    found: list[Suspect] = []
    for own, ratio in lonely(scene.weights):
        index = _row(scene, own)
        if index is not None:
            found.append(_suspect(scene, own, ratio, index))
    return found


def _row(scene: Scene, own: MatrixReading) -> int | None:
    rows = [
        index
        for index, write in enumerate(scene.writes)
        if write.layer == own.layer and own.write in (None, write.name)
    ]
    return rows[0] if rows else None


def _suspect(scene: Scene, own: MatrixReading, ratio: float, index: int) -> Suspect:
    trial = Trial(
        write=scene.writes[index],
        label=f"set {own.name}{list(own.peak_at)} to 0",
        weights=patched_value(scene.model, own.name, own.peak_at, 0.0),
    )

    def statement(outcome: Outcome) -> str:
        return (
            f"{own.name}{list(own.peak_at)} is {ratio:.3g} times the next largest weight; "
            f"{gain_of(outcome)}"
        )

    return Suspect(
        code=RULE.code,
        index=index,
        trials=(trial,),
        evidence=_evidence(own, ratio),
        statement=statement,
    )


def scan(table: WeightTable) -> list[WeightFact]:
    """By weights alone."""
    return [
        WeightFact(
            reading=own,
            statement=(
                f"{own.name}{list(own.peak_at)} is {ratio:.3g} times the next largest weight"
            ),
            evidence=_evidence(own, ratio),
            status="confirmed" if ratio > _ABSURD or not np.isfinite(ratio) else "suspect",
        )
        for own, ratio in lonely(table)
    ]
