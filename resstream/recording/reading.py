"""What does one forward pass over one batch say about every write?"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from resstream.errors import SilentHookError
from resstream.recording.ledger import (
    WriteSums,
    count_non_finite,
    row_dots,
    row_norms,
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


@dataclass(frozen=True, slots=True)
class _Pending:
    """A write that was read and not summed yet."""

    stop: int
    index: int
    write: Tensor


class Reading:
    """Reads the stops of a route while the model runs: one batch, one run.

    Writes are kept until the end, since how much of them survives is only known from the last
    stream; points of the stream are let go as soon as the next block begins.  Room for everything
    that is kept is made before it comes: small arrays made in between would split the memory that
    the blocks give back, and the heap would grow to several times what is in use.

    Args:
        route: The stops.
        first: The stream before block 0.
        waits: Whether writes may yet say something of themselves (`take`) after they were read.
    """

    def __init__(
        self, route: Route, first: Float[Tensor, "batch pos d_model"], *, waits: bool = False
    ) -> None:
        batch, pos, _ = first.shape
        self._route = route
        self._waits = waits
        self._pending: _Pending | None = None
        self._reached: set[int] = set()
        self._streams: dict[str, Tensor] = {}
        self._sum: Tensor | None = None
        self._writes = first.new_empty((len(route.writes), *first.shape))
        self._points = {site: index for index, site in enumerate(route.points)}
        self.sums = WriteSums.make_room(len(route.writes), batch, pos)
        """Sums of all writes."""
        self.norms: Float[np.ndarray, "depth batch pos"] = np.zeros((len(self._points), batch, pos))
        """Norm of the stream at every point of the route."""
        self.non_finite: Int[np.ndarray, "stop batch pos"]
        self.non_finite = np.zeros((len(route.stops), batch, pos), dtype=np.int64)
        """How many channels are not finite at every stop of the route."""
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
                self._settle()
                self._streams.clear()
            stream = widen(value)
            self._streams[site] = stream
            norms = self.norms[self._points[site]]
            norms[:] = row_norms(stream)
            self._look_for_bad(stop, stream, norms)

        return read

    def _branch_reader(self, index: int) -> Reader:
        def read(value: Tensor) -> None:
            branch = widen(value).reshape(*self.norms.shape[1:], -1)
            self.sums.branch_norm[index] = row_norms(branch)

        return read

    def _write_reader(self, stop: int, index: int) -> Reader:
        def read(value: Tensor) -> None:
            self._settle()
            self._writes[index].copy_(value)
            self._pending = _Pending(stop, index, widen(value))
            if not self._waits:
                self._settle()

        return read

    def take(self, layer: int, name: str, statistics: Tensor) -> None:
        """What the write that was read last says of itself; see `resstream.recording.measured`."""
        pending = self._pending
        if pending is not None:
            spec = self._route.writes[pending.index]
            if (spec.layer, spec.name) == (layer, name):
                self._settle(statistics)

    def _settle(self, statistics: Tensor | None = None) -> None:
        """Sum the write that was read last, unless that is done."""
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        index, write = pending.index, pending.write
        if statistics is None or not self.sums.fill_measured(index, write, statistics):
            self.sums.fill(index, write, *self._stream_before(index))
        spec = self._route.writes[index]
        if spec.branch is None:  # else its own reader has measured it, before any norm behind it
            self.sums.branch_norm[index] = self.sums.write_norm[index] / abs(spec.scale)
        self._look_for_bad(pending.stop, write, self.sums.write_norm[index])
        self._add(index, write)

    def _stream_before(self, index: int) -> tuple[Tensor, Float[np.ndarray, "batch pos"]]:
        site = self._route.before[index]
        if site is not None:
            return self._streams[site], self.norms[self._points[site]]
        assert self._sum is not None, "the write before this one left its sum"
        return self._sum, row_norms(self._sum)

    def _add(self, index: int, write: Tensor) -> None:
        """Leave the stream behind a write to the next one, where that point has no site."""
        before = self._route.before
        if index + 1 < len(before) and before[index + 1] is None:
            stream, _ = self._stream_before(index)
            unknown = torch.full_like(stream, torch.nan)
            self._sum = stream + write if self._route.additive[index] else unknown

    def _look_for_bad(
        self, stop: int, values: Tensor, norms: Float[np.ndarray, "batch pos"]
    ) -> None:
        self._reached.add(stop)
        counts = count_non_finite(values, norms)
        self.non_finite[stop] = counts
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
        self._settle()
        stops = self._route.stops
        silent = [stop.site for index, stop in enumerate(stops) if index not in self._reached]
        if silent:
            names = ", ".join(silent)
            raise SilentHookError(f"the run never reached {names}; nothing was recorded")

    def metrics(self) -> Float[np.ndarray, "metric write batch pos"]:
        """All metrics of all writes; see `resstream.recording.ledger.write_metrics`."""
        final, norms = self._streams[self._route.points[-1]], self.norms[-1]
        for index, write in enumerate(self.writes()):
            self.sums.final_dot[index] = row_dots(write, final, self.sums.write_norm[index], norms)
        return write_metrics(self.sums, norms)

    def writes(self) -> Iterator[Float[Tensor, "batch pos d_model"]]:
        """Each write in the precision of the stream, in the order of execution."""
        yield from map(widen, self._writes)
