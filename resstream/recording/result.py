"""What does a recording say, and how is it shown?"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from jaxtyping import Bool, Float, Int

from resstream.recording.ledger import METRICS
from resstream.recording.online import QUANTILES, Summary
from resstream.shapes import STRATA
from resstream.stream.result import Result

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

_TITLES = {
    "branch_norm": "norm of the branch",
    "write_norm": "norm of the write",
    "relative_norm": "norm of the write / norm of the stream",
    "cosine": "cosine of write and stream",
    "parallel": "length of the write along the stream",
    "orthogonal": "length of the write across the stream",
    "erase_fraction": "part of the stream that is erased",
    "channel_share": "share of the largest channel",
    "survival": "part of the write that survives to the end",
    "survival_cosine": "cosine of write and last stream",
}
_LOGARITHMIC = ("branch_norm", "write_norm", "relative_norm", "orthogonal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """The first value that is not finite, in the order of execution."""

    site: str
    """Where it appears: a write, or the stream if an addition or the embedding made it."""
    layer: int
    write: str | None
    """`attn`, `mlp`, `mixer` or `block`; None for a point of the stream."""
    sequence: int
    token: int
    """Position in the sequence."""
    channel: int
    value: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Recording(Result):
    """Statistics of every write into the stream, over the tokens of each stratum.

    Axis ``write`` counts writes in the order of execution, ``depth`` the points of the stream that
    have a site, from the embedding to the last block's output (a parallel block has none between
    its writes), ``stratum`` is `resstream.shapes.STRATA`: ``body``, then ``sink`` (see
    `resstream.recording.strata`).  The metrics are defined in
    `resstream.recording.ledger.write_metrics`.

    Where `additive` is False (Post-LN, DeepNorm) the stream is scaled or normed when the write is
    added: the write reported here is what enters that sum, and not the difference of the stream
    behind and before it; survival is still its overlap with the last stream.
    """

    schema: ClassVar[str] = "resstream.record/1"

    text: str
    """What was read, in a phrase."""
    n_sequences: int
    n_tokens: Int[np.ndarray, " stratum"]

    labels: tuple[str, ...]
    """Short name of each write, for example ``L3 attn``."""
    layers: Int[np.ndarray, " write"]
    names: tuple[str, ...]
    """`attn`, `mlp`, `mixer` or `block` for each write."""
    sites: tuple[str, ...]
    """TransformerLens name of each write."""
    additive: Bool[np.ndarray, " write"]
    """Whether the stream behind the write is the stream before it plus the write."""
    stream_sites: tuple[str, ...]
    """TransformerLens name of each point of the stream."""

    branch_norm: Summary
    write_norm: Summary
    relative_norm: Summary
    cosine: Summary
    parallel: Summary
    orthogonal: Summary
    erase_fraction: Summary
    channel_share: Summary
    survival: Summary
    survival_cosine: Summary
    stream_norm: Summary
    """Norm of the stream at each depth."""

    common_mode: Float[np.ndarray, "write stratum"]
    """|mean w|^2 / mean |w|^2 over tokens: 1 if every token gets the same write.

    With n tokens it is about 1/n for writes that have nothing in common.
    """
    top_channel: Int[np.ndarray, "write stratum"]
    """Channel that is largest in most tokens; -1 where there were none."""
    top_channel_votes: Float[np.ndarray, "write stratum"]
    """Share of the tokens in which it is."""
    non_finite: Int[np.ndarray, "write stratum"]
    """Values of the write that are NaN or infinite."""
    stream_non_finite: Int[np.ndarray, "depth stratum"]
    """Values of the stream that are NaN or infinite."""
    first_non_finite: Culprit | None
    """Where the first of them appeared."""
    growth: float
    """Factor by which the median stream norm of the body grows per block (log-linear fit)."""
    growth_r2: float
    """How much of the variance of the log norm the fit explains."""
    kept: str | None
    """Directory of the activations that were kept."""

    def summary(self, metric: str) -> Summary:
        """The summary of the metric of that name."""
        if metric not in (*METRICS, "stream_norm"):
            raise ValueError(f"metric must be one of {', '.join(METRICS)}, got {metric!r}")
        return getattr(self, metric)

    def to_dataframe(self) -> "pd.DataFrame":
        """One row a place in the stream, stratum and metric.

        Norms are in the units of the stream; all other metrics have none.  What is a single number
        (``common_mode``, ``top_channel_votes``, ``non_finite``) stands in ``mean``, and ``channel``
        is the channel that it is about.
        """
        import pandas as pd

        rows = [row for metric in METRICS for row in self._summary_rows(metric)]
        rows += [*self._number_rows(), *self._summary_rows("stream_norm")]
        table = pd.DataFrame(rows)
        return table.astype({"layer": "Int64", "count": "Int64", "channel": "Int64"})

    def _summary_rows(self, metric: str) -> Iterator[dict[str, Any]]:
        summary = self.summary(metric)
        for row, index in np.ndindex(summary.mean.shape):
            levels = summary.quantiles[row, index]
            yield {
                **(self._stream_place(row) if metric == "stream_norm" else self._place(row)),
                "stratum": STRATA[index],
                "metric": metric,
                "count": int(summary.count[row, index]),
                "mean": summary.mean[row, index],
                "std": summary.std[row, index],
                **{f"q{100 * q:02.0f}": v for q, v in zip(QUANTILES, levels, strict=True)},
                "channel": None,
            }

    def _number_rows(self) -> Iterator[dict[str, Any]]:
        for row, index in np.ndindex(self.common_mode.shape):
            numbers = {
                "common_mode": self.common_mode,
                "top_channel_votes": self.top_channel_votes,
                "non_finite": self.non_finite,
            }
            for metric, values in numbers.items():
                is_vote = metric == "top_channel_votes"
                yield {
                    **self._place(row),
                    "stratum": STRATA[index],
                    "metric": metric,
                    "count": int(self.n_tokens[index]),
                    "mean": float(values[row, index]),
                    "channel": int(self.top_channel[row, index]) if is_vote else None,
                }

    def _place(self, row: int) -> dict[str, Any]:
        return {
            "layer": int(self.layers[row]),
            "write": self.names[row],
            "site": self.sites[row],
        }

    def _stream_place(self, row: int) -> dict[str, Any]:
        site = self.stream_sites[row]
        return {"layer": int(site.split(".")[1]), "write": None, "site": site}

    def plot(self, metric: str = "relative_norm") -> "go.Figure":
        """The median of one metric over the layers, a line for each kind of write.

        Bands reach from the 5 % to the 95 % quantile; the stratum is ``body``.

        Args:
            metric: Name of a metric of a write, or ``stream_norm``.
        """
        from resstream.figures.profile import Series, layer_profile, stream_growth

        summary = self.summary(metric)
        body = summary.quantiles[:, STRATA.index("body")]
        low, median, high = body[:, 0], body[:, QUANTILES.index(0.5)], body[:, -1]
        if metric == "stream_norm":
            at = np.array([_depth_in_layers(site) for site in self.stream_sites])
            sink = summary.median[:, STRATA.index("sink")]
            body_line = Series("body", median, low=low, high=high, at=at)
            return stream_growth([body_line, Series("sink", sink, at=at, aside=True)])
        lines: list[Series] = []
        for name in dict.fromkeys(self.names):
            own = np.array([other == name for other in self.names])
            at = self.layers[own].astype(np.float64)
            lines.append(Series(name, median[own], low=low[own], high=high[own], at=at))
        return layer_profile(lines, value_title=_TITLES[metric], log=metric in _LOGARITHMIC)


def _depth_in_layers(site: str) -> float:
    """How many layers a point of the stream has behind it; half of one between two writes."""
    _, layer, name = site.split(".")
    return int(layer) + {"hook_resid_pre": 0.0, "hook_resid_mid": 0.5, "hook_resid_post": 1.0}[name]
