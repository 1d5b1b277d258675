"""RS202: a write that goes into one channel, unlike its neighbours'."""

import numpy as np

from resstream.checks.experiments import Outcome, Trial, clip_channel
from resstream.checks.proof import UNUSUAL_Z, change_trial, gain_of, plain
from resstream.checks.repairs import clipped_row
from resstream.checks.rule import Rule, Suspect
from resstream.checks.scene import Scene

LARGE_SHARE = 0.3
"""Part of the squared norm in one channel from which it may be suspected."""
LARGE_ROW = 4.0

RULE = Rule(
    code="RS202",
    name="channel spike",
    stage="pollution",
    severity="error",
    what="A write pours into one channel of the stream.",
    why="Every norm behind it divides by that channel, so that everything else becomes small.",
    detection=f"Share of the largest channel above {LARGE_SHARE:g} of the squared norm and "
    f"{UNUSUAL_Z:g} robust standard deviations above the neighbours', or one row of the output "
    f"matrix {LARGE_ROW:g} times the median row and unlike the same matrix elsewhere; confirmed if "
    "the loss falls when that channel is brought to the size of the others.",
    traps="Massive activations put nearly all of a write into one channel in healthy models (share "
    "0.96 in an MLP of SmolLM2): clipping it there does harm.",
    fix="restore the row of this channel in the output matrix from an earlier checkpoint, or "
    "scale it down to the others'",
    source="Timkey and van Schijndel (2021), All Bark and No Bite; Sun et al. (2024).",
    example="resstream inject demo --fault channel_spike --severity 50 --layer 4 --write mlp "
    "--out broken\nresstream check broken",
    suspects=lambda scene: [*_by_share(scene), *_by_row(scene)],
)


def _by_share(scene: Scene) -> list[Suspect]:
    readings = scene.readings
    found = np.flatnonzero((readings.share_z > UNUSUAL_Z) & (readings.channel_share > LARGE_SHARE))
    suspects: list[Suspect] = []
    for index in map(int, found):
        channel = int(readings.channel[index])
        trial = change_trial(readings, index, f"clip channel {channel}", clip_channel(channel))
        suspects.append(
            _suspect(scene, index, channel, (trial, *_row_trial(scene, index, channel)))
        )
    return suspects


def _by_row(scene: Scene) -> list[Suspect]:
    if not scene.informative:
        return []
    known = {item.index for item in _by_share(scene)}
    suspects: list[Suspect] = []
    for index, write in enumerate(scene.writes):
        reading = scene.weights.find(write.output_matrix)
        if reading is None or index in known or not reading.is_matrix:
            continue
        own = _excess(reading.column_norms if write.output_transposed else reading.row_norms)
        near = [
            _excess(peer.column_norms if write.output_transposed else peer.row_norms)
            for peer in scene.weights.peers(reading)
        ]
        usual = float(np.median([ratio for _, ratio in near])) if near else own[1]
        if own[1] > max(LARGE_ROW, 2 * usual):
            suspects.append(_suspect(scene, index, own[0], _row_trial(scene, index, own[0])))
    return suspects


def _excess(norms: np.ndarray) -> tuple[int, float]:
    """The channel with the largest row, and how many times the median row it is."""
    middle = float(np.median(norms))
    return int(norms.argmax()), float(norms.max()) / middle if middle > 0 else 1.0


def _row_trial(scene: Scene, index: int, channel: int) -> tuple[Trial, ...]:
    write = scene.writes[index]
    weights = clipped_row(scene.model, write, channel)
    label = f"scale row {channel} of the output matrix down"
    return (Trial(write=write, label=label, weights=weights),) if weights else ()


def _suspect(scene: Scene, index: int, channel: int, trials: tuple[Trial, ...]) -> Suspect:
    readings = scene.readings

    def statement(outcome: Outcome) -> str:
        label = readings.writes[index].label
        return f"{label} pollutes one channel of the stream; {gain_of(outcome)}"

    return Suspect(
        code=RULE.code,
        index=index,
        trials=trials,
        evidence=(
            plain(
                f"share of channel {channel} in the squared norm of the write",
                readings.channel_share[index],
                LARGE_SHARE,
            ),
            plain(
                "robust z-score of that share among its neighbours",
                readings.share_z[index],
                UNUSUAL_Z,
            ),
        ),
        statement=statement,
    )
