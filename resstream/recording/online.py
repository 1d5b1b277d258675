"""How are statistics of any number of tokens kept in memory that does not grow?

Mean and variance are merged batch by batch (Welford 1962 in the pairwise form of Chan, Golub and
LeVeque 1979); quantiles come from t-digests (Dunning and Ertl 2019).  A t-digest is chosen over a
KLL sketch because it draws no random numbers: the same text in the same batches gives the same
quantiles.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from resstream.shapes import STRATA

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Which quantiles of a metric are given."""

_COMPRESSION = 200
"""Size of a t-digest: its rank error stays below 2 %."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Summary:
    """One metric over the tokens of each stratum, for each write (or each point of the stream)."""

    count: Int[np.ndarray, "row stratum"]
    """Tokens for which the metric is defined (finite)."""
    mean: Float[np.ndarray, "row stratum"]
    std: Float[np.ndarray, "row stratum"]
    """Standard deviation over tokens, with the count as divisor."""
    quantiles: Float[np.ndarray, "row stratum quantile"]
    """At `QUANTILES`; within 2 % of the rank that is asked for."""

    @property
    def median(self) -> Float[np.ndarray, "row stratum"]:
        """The 50 % quantile."""
        return self.quantiles[..., QUANTILES.index(0.5)]


class TokenStatistics:
    """Mean, variance and quantiles of many metrics, one value a token, by stratum.

    Args:
        n_metrics: How many metrics.
        n_rows: How many writes (or points of the stream) each is measured at.
    """

    def __init__(self, n_metrics: int, n_rows: int) -> None:
        from datasketches import tdigest_float  # pyright: ignore  (compiled, without stubs)

        shape = (n_metrics, n_rows, len(STRATA))
        self._count = np.zeros(shape, dtype=np.int64)
        self._mean = np.zeros(shape)
        self._squares = np.zeros(shape)
        self._digests: np.ndarray = np.empty(shape, dtype=object)
        for index in np.ndindex(shape):
            self._digests[index] = tdigest_float(_COMPRESSION)

    def update(
        self, values: Float[np.ndarray, "metric row token"], stratum: Int[np.ndarray, " token"]
    ) -> None:
        """Take in the values of a batch of tokens; what is not finite counts as undefined."""
        for index in range(len(STRATA)):
            part = values[..., stratum == index]
            if part.shape[-1]:
                self._merge(part, index)
                self._sketch(part, index)

    def _merge(self, part: Float[np.ndarray, "metric row token"], index: int) -> None:
        defined = np.isfinite(part)
        fresh = defined.sum(-1)
        mean = np.where(defined, part, 0.0).sum(-1) / np.maximum(fresh, 1)
        squares = np.where(defined, part - mean[..., None], 0.0)
        old, total = self._count[..., index], self._count[..., index] + fresh
        shift, share = mean - self._mean[..., index], fresh / np.maximum(total, 1)
        self._squares[..., index] += (squares**2).sum(-1) + shift**2 * old * share
        self._mean[..., index] += shift * share
        self._count[..., index] = total

    def _sketch(self, part: Float[np.ndarray, "metric row token"], index: int) -> None:
        for place in itertools.product(*map(range, part.shape[:-1])):
            values = part[place]
            self._digests[(*place, index)].update(values[np.isfinite(values)].astype(np.float32))

    def summaries(self) -> list[Summary]:
        """One summary a metric, in the order of the first axis of the values."""
        count, empty = self._count, self._count == 0
        mean = np.where(empty, np.nan, self._mean)
        std = np.where(empty, np.nan, np.sqrt(self._squares / np.maximum(count, 1)))
        quantiles = np.full((*count.shape, len(QUANTILES)), np.nan)
        for index in np.ndindex(count.shape):
            quantiles[index] = _quantiles(self._digests[index])
        return [
            Summary(count=count[i].copy(), mean=mean[i], std=std[i], quantiles=quantiles[i])
            for i in range(len(count))
        ]


def _quantiles(digest: Any) -> list[float]:
    if digest.is_empty():
        return [float("nan")] * len(QUANTILES)
    return [digest.get_quantile(rank) for rank in QUANTILES]


class ChannelStatistics:
    """Mean vector and largest channel of each write, by stratum: ``d_model`` numbers a write.

    Args:
        n_writes: How many writes.
        d_model: Width of the stream.
    """

    def __init__(self, n_writes: int, d_model: int) -> None:
        shape = (n_writes, len(STRATA))
        self._count = np.zeros(shape, dtype=np.int64)
        self._sum = np.zeros((*shape, d_model))
        self._squares = np.zeros(shape)
        self._votes = np.zeros((*shape, d_model), dtype=np.int64)

    def update(
        self,
        write: int,
        values: Float[Tensor, "batch pos d_model"],
        norms: Float[np.ndarray, "batch pos"],
        channel: Int[np.ndarray, "batch pos"],
        stratum: Int[np.ndarray, "batch pos"],
    ) -> None:
        """Take in one write of a batch; tokens whose norm is not finite are left out."""
        for index in range(len(STRATA)):
            chosen = np.isfinite(norms) & (stratum == index)
            if not chosen.any():
                continue
            rows = values[torch.from_numpy(chosen).to(values.device)]
            self._count[write, index] += len(rows)
            self._sum[write, index] += rows.sum(0).double().numpy(force=True)
            self._squares[write, index] += float((norms[chosen] ** 2).sum())
            votes = np.bincount(channel[chosen], minlength=self._votes.shape[-1])
            self._votes[write, index] += votes

    def common_mode(self) -> Float[np.ndarray, "write stratum"]:
        r""":math:`|\bar w|^2 / \overline{|w|^2}`: 1 if every token gets the same write."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return (self._sum**2).sum(-1) / self._count / self._squares

    def top_channel(self) -> Int[np.ndarray, "write stratum"]:
        """The channel that is largest in most tokens; -1 where there were no tokens."""
        return np.where(self._count > 0, self._votes.argmax(-1), -1)

    def top_channel_votes(self) -> Float[np.ndarray, "write stratum"]:
        """Share of the tokens that agree on `top_channel`."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return self._votes.max(-1) / self._count
