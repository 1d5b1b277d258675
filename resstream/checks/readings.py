"""Passive numbers of every write, and how unusual they are among the model's own neighbours.

Nothing is judged against a constant alone: a write is compared with the writes of its kind up to
three blocks away, itself left out, in robust standard deviations (median and MAD, with a floor).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from resstream.recording.result import Recording
from resstream.shapes import STRATA
from resstream.stream.spec import WriteSpec

_REACH = 3
_FLOOR_LOG_NORM = 0.15
_FLOOR_SHARE = 0.05
_MAD_TO_STD = 1.4826


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """Medians over the tokens that are no sinks, one row a write."""

    writes: tuple[WriteSpec, ...]
    write_norm: Float[np.ndarray, " write"]
    relative_norm: Float[np.ndarray, " write"]
    cosine: Float[np.ndarray, " write"]
    channel_share: Float[np.ndarray, " write"]
    channel: Int[np.ndarray, " write"]
    """Channel that is the largest most often."""
    common_mode: Float[np.ndarray, " write"]
    """1 if every token gets the same write."""
    erase_fraction: Float[np.ndarray, " write"]
    expected_norm: Float[np.ndarray, " write"]
    norm_z: Float[np.ndarray, " write"]
    expected_share: Float[np.ndarray, " write"]
    share_z: Float[np.ndarray, " write"]

    @property
    def ratio(self) -> Float[np.ndarray, " write"]:
        """Write norm over what the neighbours lead one to expect."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.write_norm / self.expected_norm

    def neighbours(self, index: int) -> list[int]:
        """Rows of the writes that `index` is compared with."""
        return neighbours_of(self.writes, index)


def read(recording: Recording, writes: tuple[WriteSpec, ...]) -> Readings:
    """Take what checks need from a recording."""
    body = STRATA.index("body")
    medians: Mapping[str, np.ndarray] = {
        name: recording.summary(name).median[:, body]
        for name in ("write_norm", "relative_norm", "cosine", "channel_share", "erase_fraction")
    }
    with np.errstate(divide="ignore"):
        log_norm = np.log(medians["write_norm"])
    expected, norm_z = _against_neighbours(log_norm, writes, _FLOOR_LOG_NORM)
    share, share_z = _against_neighbours(medians["channel_share"], writes, _FLOOR_SHARE)
    return Readings(
        writes=writes,
        **medians,
        channel=recording.top_channel[:, body],
        common_mode=recording.common_mode[:, body],
        expected_norm=np.exp(expected),
        norm_z=norm_z,
        expected_share=share,
        share_z=share_z,
    )


def neighbours_of(writes: tuple[WriteSpec, ...], index: int) -> list[int]:
    """Writes of the same kind up to three blocks away; all others if these are fewer than two."""
    own = writes[index]
    near = [
        row
        for row, write in enumerate(writes)
        if row != index and write.name == own.name and abs(write.layer - own.layer) <= _REACH
    ]
    return near if len(near) >= 2 else [row for row in range(len(writes)) if row != index]


def _against_neighbours(
    values: Float[np.ndarray, " write"], writes: tuple[WriteSpec, ...], floor: float
) -> tuple[Float[np.ndarray, " write"], Float[np.ndarray, " write"]]:
    """What the neighbours lead one to expect of each write, and its robust z-score; 0 if alike.

    A fault may lift (or sink) everything behind it, so that the neighbours on the two sides differ
    and the spread of all of them hides the culprit.  A write that stands out from both sides in one
    direction is therefore scored by the nearer side, and held against the side before it, which
    the fault can't have touched.
    """
    centre, z = np.full(len(values), np.nan), np.zeros(len(values))
    for index, value in enumerate(values):
        near = neighbours_of(writes, index)
        centre[index], z[index] = robust_score(value, values[near], floor)
        before = [row for row in near if writes[row].layer < writes[index].layer]
        after = [row for row in near if writes[row].layer > writes[index].layer]
        if min(len(before), len(after)) < 2:
            continue
        expected, left = robust_score(value, values[before], floor)
        _, right = robust_score(value, values[after], floor)
        peak = min(left, right, key=abs) if (left > 0) == (right > 0) else 0.0
        if abs(peak) > abs(z[index]):
            centre[index], z[index] = expected, peak
    return centre, z


def robust_score(
    value: float, near: Float[np.ndarray, " neighbour"], floor: float
) -> tuple[float, float]:
    """Median of the neighbours, and how many robust standard deviations `value` is from it."""
    near = near[~np.isnan(near)]
    if near.size == 0:
        return np.nan, 0.0
    centre = float(np.median(near))
    if value == centre or np.isneginf(centre):
        return centre, 0.0  # alike, or nothing is written anywhere around: nothing stands out
    finite = near[np.isfinite(near)]
    spread = _MAD_TO_STD * float(np.median(np.abs(finite - centre)))
    return centre, (value - centre) / max(spread, floor)
