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
        for name in ("write_norm", "relative_norm", "cosine", "channel_share")
    }
    with np.errstate(divide="ignore"):
        log_norm = np.log(medians["write_norm"])
    expected, norm_z = _against_neighbours(log_norm, writes, _FLOOR_LOG_NORM)
    share, share_z = _against_neighbours(medians["channel_share"], writes, _FLOOR_SHARE)
    return Readings(
        writes=writes,
        **medians,
        channel=recording.top_channel[:, body],
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
    """Median of the neighbours and robust z-score of each write; 0 where all are alike."""
    centre, z = np.full(len(values), np.nan), np.zeros(len(values))
    for index, value in enumerate(values):
        near = values[neighbours_of(writes, index)]
        near = near[~np.isnan(near)]
        if near.size == 0:
            continue
        centre[index] = np.median(near)
        if value == centre[index] or np.isneginf(centre[index]):
            continue  # alike, or nothing is written anywhere around: nothing stands out
        spread = _MAD_TO_STD * np.median(np.abs(near[np.isfinite(near)] - centre[index]))
        z[index] = (value - centre[index]) / max(float(spread), floor)
    return centre, z
