"""RS402: an output matrix that was never trained, or lost what it had learnt."""

import numpy as np

from resstream.checks.experiments import Outcome, Trial
from resstream.checks.matching import match_to_inputs
from resstream.checks.proof import change_trial, gain_of, plain
from resstream.checks.repairs import denoised_output, redrawn_output
from resstream.checks.rule import Rule, Suspect
from resstream.checks.rules.rs404_outlier import LONELY, loneliness
from resstream.checks.scene import Scene
from resstream.checks.weight_facts import WeightFact
from resstream.checks.weights import MatrixReading, WeightTable
from resstream.sweep.variants import zero

AT_EDGE, PEERS_ABOVE, ALL_PEERS_ABOVE = 1.03, 1.1, 1.2
LOST_MATCH, NO_MATCH = 0.4, 0.3
SWOLLEN, BLUNTED = 1.15, 0.95
_DRAWS = 3
DENOISING = "shrink its singular values"

RULE = Rule(
    code="RS402",
    name="untrained matrix",
    stage="pollution",
    severity="error",
    what="An output matrix looks like noise, while its peers do not.",
    why="Freshly initialised (a resumed run that skipped a tensor, a bad merge), or drowned in "
    "noise: the layer adds random vectors.",
    detection=f"Largest singular value below {AT_EDGE:g} of the Marchenko-Pastur edge of a random "
    f"matrix while the peers' median is above {PEERS_ABOVE:g}; or the norms of its columns no "
    "longer go with the norms of the rows that feed them (hidden units that read much also write "
    f"much: correlation 0.4 to 0.95 in trained MLPs), {LOST_MATCH:g} below the "
    f"peers' and below {NO_MATCH:g}. Confirmed if "
    "the loss falls without the write, or if drawing the matrix anew changes nothing: what was "
    "learnt can't be drawn anew. By weights alone it is a suspicion, and a fact where every peer "
    f"is above {ALL_PEERS_ABOVE:g}. A matrix of more than {SWOLLEN:g} times its peers' norm "
    f"and less than {BLUNTED:g} times their edge ratio is tried with its singular values shrunk to "
    "what they were before noise, and confirmed if the loss falls and size does not explain it.",
    traps="In an untrained model all matrices are at the edge, and so are some value matrices of "
    "trained ones (SmolLM2's): only output matrices count, and only against peers.",
    fix="restore the matrix from an earlier checkpoint; without one, remove the write",
    source="Marchenko and Pastur (1967); Martin and Mahoney (2021), Implicit Self-Regularization; "
    "Gavish and Donoho (2017), Optimal Shrinkage of Singular Values.",
    example="resstream inject demo --fault reinit --layer 4 --write attn --out broken\n"
    "resstream check broken",
    suspects=lambda scene: _suspects(scene),
)


def noise_signs(table: WeightTable, own: MatrixReading) -> dict[str, tuple[float, float]]:
    """What speaks for noise: name of the number to value and threshold; empty if nothing does."""
    signs: dict[str, tuple[float, float]] = {}
    peers = table.peers(own)
    if not peers or not own.is_matrix or own.is_zero or loneliness(own) >= LONELY:
        return signs  # one weight that drowns the others says nothing about them
    usual = float(np.nanmedian([peer.edge_ratio for peer in peers]))
    if own.edge_ratio < AT_EDGE and usual > PEERS_ABOVE:
        signs["largest singular value over the random edge"] = (own.edge_ratio, AT_EDGE)
    match = match_to_inputs(table, own)
    others = [match_to_inputs(table, peer) for peer in peers]
    known = [value for value in others if np.isfinite(value)]
    if np.isfinite(match) and known:
        limit = float(np.median(known)) - LOST_MATCH
        if match < min(limit, NO_MATCH):
            signs["correlation of output columns with input rows (log norms)"] = (match, limit)
    return signs


def _suspects(scene: Scene) -> list[Suspect]:
    if not scene.informative:
        return []
    found: list[Suspect] = []
    for index, write in enumerate(scene.writes):
        reading = scene.weights.find(write.output_matrix)
        if reading is None:
            continue
        signs = noise_signs(scene.weights, reading)
        cleaned = _cleaned(scene, index, reading)
        if signs or cleaned:
            found.append(_suspect(scene, index, signs, cleaned))
    return found


def _cleaned(scene: Scene, index: int, own: MatrixReading) -> tuple[Trial, ...]:
    """The matrix without its noise, which adds to the norm and not to the strongest direction."""
    if not own.is_matrix:
        return ()
    norm, edge = (scene.weights.score(own, name, floor=0.1)[0] for name in ("norm", "edge_ratio"))
    if not (own.norm > SWOLLEN * norm and own.edge_ratio < BLUNTED * edge):
        return ()
    weights = denoised_output(scene.model, scene.writes[index])
    trial = Trial(write=scene.writes[index], label=DENOISING, weights=weights)
    return (trial,) if weights else ()


def _suspect(
    scene: Scene, index: int, signs: dict[str, tuple[float, float]], cleaned: tuple[Trial, ...]
) -> Suspect:
    label = scene.writes[index].label
    taken = (change_trial(scene.readings, index, "zero", zero),) if signs else ()

    def statement(outcome: Outcome) -> str:
        if outcome.trial.label == DENOISING:
            return f"{label} is drowned in noise; {gain_of(outcome)}"
        if outcome.trial.weights:
            return f"{label} is untrained: drawing its output matrix anew changes nothing"
        return f"{label} is untrained or drowned in noise; {gain_of(outcome)}"

    return Suspect(
        code=RULE.code,
        index=index,
        trials=(*taken, *cleaned),
        evidence=tuple(plain(name, value, limit) for name, (value, limit) in signs.items()),
        statement=statement,
    )


def redraws(scene: Scene, index: int) -> tuple[Trial, ...]:
    """The output matrix drawn anew, a few times."""
    write = scene.writes[index]
    return tuple(
        Trial(
            write=write,
            label=f"draw the output matrix anew ({seed})",
            weights=redrawn_output(scene.model, write, seed),
        )
        for seed in range(1, 1 + _DRAWS)
    )


def is_certain(table: WeightTable, own: MatrixReading) -> bool:
    """True if the matrix is at the random edge and every peer is well above it."""
    peers = [peer.edge_ratio for peer in table.peers(own)]
    return own.edge_ratio < AT_EDGE and min(peers, default=0.0) > ALL_PEERS_ABOVE


def scan(table: WeightTable, outputs: frozenset[str]) -> list[WeightFact]:
    """By weights alone: facts and suspicions about the output matrices of these names."""
    return [
        WeightFact(
            reading=own,
            statement=f"{own.name} looks like noise, unlike the same matrix of other layers",
            evidence=tuple(plain(name, value, limit) for name, (value, limit) in signs.items()),
            status="confirmed" if is_certain(table, own) else "suspect",
        )
        for own in table.in_blocks
        if own.name in outputs and (signs := noise_signs(table, own))
    ]
