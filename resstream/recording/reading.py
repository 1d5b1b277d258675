"""What does one forward pass over one batch say about every write?"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from resstream.errors import SilentHookError
from resstream.recording.ledger import (
    METRICS,
    WriteSums,
    count_non_finite,
    row_dots,
    row_norms,
    sum_write,
    widen,
    write_metrics,
)
from resstream.recording.route import Route
from resstream.stream.sites import block_site

Reader = Callable[[Tensor], None]


@dataclass(frozen=True, slots=True)
class BadValue:
    """The first value of a batch that is not finite."""

    stop: int
    """Index of the stop of the route at which it appears."""
    row: int
    token: int
    channel: int
    value: float


class Reading:
    """Reads the stops of a route while the model runs: one batch, one run.

    Writes are kept until the end, since how much of them survives is only known from the last
    stream; points of the stream are let go as soon as the next block begins.

    Args:
        route: The stops.
    """

    def __init__(self, route: Route) -> None:
        self._route = route
        self._streams: dict[str, Tensor] = {}
        self._sum: Tensor | None = None
        self._norms: dict[str, Float[np.ndarray, "batch pos"]] = {}
        self._branches: dict[int, Float[np.ndarray, "batch pos"]] = {}
        self._writes: dict[int, Tensor] = {}
        self._sums: dict[int, WriteSums] = {}
        self._non_finite: dict[int, Int[np.ndarray, "batch pos"]] = {}
        self.bad: BadValue | None = None
        """The first value that is not finite, in the order of execution."""

    def readers(self) -> Iterator[tuple[str, Reader]]:
        """Each site with the function that reads it."""
        for index, stop in enumerate(self._route.stops):
            if stop.write is None:
                yield stop.site, self._stream_reader(index, stop.site)
                continue
            write = self._route.writes[stop.write]
            if write.branch is not None:
                site = block_site(write.layer, f"{write.name}_branch")
                yield site, self._branch_reader(stop.write)
            yield stop.site, self._write_reader(index, stop.write)

    def _stream_reader(self, stop: int, site: str) -> Reader:
        def read(value: Tensor) -> None:
            if site.endswith("resid_pre"):
                self._streams.clear()
            stream = widen(value)
            self._streams[site] = stream
            self._norms[site] = row_norms(stream)
            self._look_for_bad(stop, stream, self._norms[site])

        return read

    def _branch_reader(self, write: int) -> Reader:
        def read(value: Tensor) -> None:
            shape = next(iter(self._norms.values())).shape
            self._branches[write] = row_norms(widen(value).reshape(*shape, -1))

        return read

    def _write_reader(self, stop: int, index: int) -> Reader:
        route = self._route

        def read(value: Tensor) -> None:
            write = widen(value)
            stream, norm = self._stream_before(index)
            self._writes[index] = value
            self._sums[index] = sum_write(write, stream, norm)
            self._look_for_bad(stop, write, self._sums[index].write_norm)
            if index + 1 < len(route.before) and route.before[index + 1] is None:
                unknown = torch.full_like(stream, torch.nan)
                self._sum = stream + write if route.additive[index] else unknown

        return read

    def _stream_before(self, index: int) -> tuple[Tensor, Float[np.ndarray, "batch pos"]]:
        site = self._route.before[index]
        if site is not None:
            return self._streams[site], self._norms[site]
        assert self._sum is not None, "the write before this one left its sum"
        return self._sum, row_norms(self._sum)

    def _look_for_bad(
        self, stop: int, values: Tensor, norms: Float[np.ndarray, "batch pos"]
    ) -> None:
        counts = count_non_finite(values, norms)
        self._non_finite[stop] = counts
        if not counts.any() or (self.bad is not None and self.bad.stop < stop):
            return
        row, token = (int(index) for index in np.argwhere(counts)[0])
        vector = values[row, token]
        channel = int((~vector.isfinite()).nonzero()[0])
        self.bad = BadValue(stop, row, token, channel, float(vector[channel]))

    def require_complete(self) -> None:
        """Make sure that every stop was reached.

        Raises:
            SilentHookError: One was not.
        """
        stops = self._route.stops
        silent = [stop.site for index, stop in enumerate(stops) if index not in self._non_finite]
        if silent:
            raise SilentHookError(
                f"the run never reached {', '.join(silent)}; nothing was recorded"
            )

    @property
    def n_positions(self) -> int:
        """Positions of each sequence of the batch."""
        return next(iter(self._norms.values())).shape[1]

    def stream_norms(self) -> Float[np.ndarray, "depth batch pos"]:
        """Norm of the stream at every point of the route."""
        return np.stack([self._norms[site] for site in self._route.points])

    def write_metrics(self) -> Float[np.ndarray, "metric write batch pos"]:
        """All metrics of all writes; see `resstream.recording.ledger.write_metrics`."""
        last = self._route.points[-1]
        final, norm = self._streams[last], self._norms[last]
        found = np.empty((len(METRICS), len(self._writes), *norm.shape))
        for index, spec in enumerate(self._route.writes):
            sums = self._sums[index]
            branch = self._branches.get(index, sums.write_norm / abs(spec.scale))
            dots = row_dots(widen(self._writes[index]), final, sums.write_norm, norm)
            found[:, index] = write_metrics(sums, branch, dots, norm)
        return found

    def writes(self) -> Iterator[tuple[Tensor, WriteSums]]:
        """Each write with its sums, in the order of execution."""
        for index in range(len(self._writes)):
            yield widen(self._writes[index]), self._sums[index]

    def non_finite(self) -> Int[np.ndarray, "stop batch pos"]:
        """How many channels are not finite at every stop of the route."""
        return np.stack([self._non_finite[index] for index in range(len(self._route.stops))])
