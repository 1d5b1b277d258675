"""What do all batches of a recording say together?"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from resstream.recording.growth import fit_growth
from resstream.recording.ledger import METRICS
from resstream.recording.online import ChannelStatistics, TokenStatistics
from resstream.recording.reading import BadValue, Reading
from resstream.recording.result import Culprit, Recording
from resstream.recording.route import plan_route
from resstream.recording.strata import stratify
from resstream.shapes import STRATA
from resstream.stream.provenance import Provenance
from resstream.stream.spec import StreamSpec


class Totals:
    """Takes in one reading a batch; its size depends on the model only.

    Args:
        spec: The stream.
    """

    def __init__(self, spec: StreamSpec) -> None:
        self.route = plan_route(spec)
        n_writes, n_points = len(spec.writes), len(self.route.points)
        self._metrics = TokenStatistics(len(METRICS), n_writes)
        self._streams = TokenStatistics(1, n_points)
        self._channels = ChannelStatistics(n_writes, spec.d_model)
        self._n_sequences = 0
        self._n_tokens = np.zeros(len(STRATA), dtype=np.int64)
        self._non_finite = np.zeros((len(self.route.stops), len(STRATA)), dtype=np.int64)
        self._bad: tuple[BadValue, int] | None = None

    def take(self, reading: Reading, rows: Sequence[int]) -> None:
        """Add the reading of one batch, whose sequences have the numbers `rows`."""
        norms, sums = reading.norms, reading.sums
        strata = stratify(norms)
        flat = strata.ravel()
        metrics = reading.metrics()
        self._metrics.update(metrics.reshape(*metrics.shape[:2], -1), flat)
        self._streams.update(norms.reshape(1, len(norms), -1), flat)
        for index, write in enumerate(reading.writes()):
            norm, channel = sums.write_norm[index], sums.channel[index]
            self._channels.update(index, write, norm, channel, strata)
        self._n_sequences += len(rows)
        self._n_tokens += np.bincount(flat, minlength=len(STRATA))
        self._count_bad(reading, rows, strata)

    def _count_bad(
        self, reading: Reading, rows: Sequence[int], strata: Int[np.ndarray, "batch pos"]
    ) -> None:
        counts = reading.non_finite
        for index in range(len(STRATA)):
            self._non_finite[:, index] += (counts * (strata == index)).sum((1, 2))
        bad = reading.bad
        if bad is None:
            return
        sequence = rows[bad.row]
        if self._bad is None or (bad.stop, sequence) < (self._bad[0].stop, self._bad[1]):
            self._bad = bad, sequence

    def _culprit(self) -> Culprit | None:
        if self._bad is None:
            return None
        bad, sequence = self._bad
        stop = self.route.stops[bad.stop]
        return Culprit(
            site=stop.site,
            layer=int(stop.site.split(".")[1]),
            write=None if stop.write is None else self.route.writes[stop.write].name,
            sequence=sequence,
            token=bad.token,
            channel=bad.channel,
            value=bad.value,
        )

    def recording(self, provenance: Provenance, *, kept: str | None) -> Recording:
        """The result."""
        route = self.route
        (stream_norm,) = self._streams.summaries()
        growth, r2 = fit_growth(route.points, stream_norm.median[:, STRATA.index("body")])
        is_write = np.array([stop.write is not None for stop in route.stops])
        return Recording(
            provenance=provenance,
            text=provenance.text,
            n_sequences=self._n_sequences,
            n_tokens=self._n_tokens.copy(),
            labels=tuple(write.label for write in route.writes),
            layers=np.array([write.layer for write in route.writes]),
            names=tuple(write.name for write in route.writes),
            sites=tuple(write.site for write in route.writes),
            additive=np.array(route.additive),
            stream_sites=route.points,
            **dict(zip(METRICS, self._metrics.summaries(), strict=True)),
            stream_norm=stream_norm,
            common_mode=self._channels.common_mode(),
            top_channel=self._channels.top_channel(),
            top_channel_votes=self._channels.top_channel_votes(),
            non_finite=self._non_finite[is_write],
            stream_non_finite=self._non_finite[~is_write],
            first_non_finite=self._culprit(),
            growth=growth,
            growth_r2=r2,
            kept=kept,
        )
