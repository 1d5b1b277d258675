"""At which depth does the model make up its mind?  The logit lens over a text, in flat memory.

Every reading is summed as it comes: means with an interval over documents, quantiles from
t-digests.
First tokens and massive ones are kept apart (see `resstream.recording.strata`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from resstream.analysis.intervals import bootstrap_interval, by_document
from resstream.analysis.logit_lens import Asked, Translate, read_streams
from resstream.analysis.points import Point, run_streams, stream_points
from resstream.analysis.readings import READINGS
from resstream.errors import ConfigError
from resstream.recording.ledger import row_norms
from resstream.recording.online import QUANTILES, TokenStatistics
from resstream.recording.strata import stratify
from resstream.shapes import STRATA
from resstream.stream.model import StreamModel
from resstream.stream.provenance import provenance_of
from resstream.stream.result import Result
from resstream.stream.texts import Batch, Corpus, Texts, read_corpus

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

_BATCH_TOKENS = 1024
_BODY = STRATA.index("body")

Progress = Callable[[int, int], None]
"""Called with the sequences that are done and all there are."""


@dataclass(frozen=True, kw_only=True)
class LensProfileResult(Result):
    """Readings of the stream at every depth, over a text."""

    schema: ClassVar[str] = "resstream.lens_profile/1"

    model: str
    text: str
    depths: tuple[str, ...]
    layers: Int[np.ndarray, " depth"]
    readings: tuple[str, ...]
    """``loss_nats``, ``kl_nats``, ``entropy_nats`` and ``rank``: see `resstream.logit_lens`."""
    strata: tuple[str, ...]
    quantile_ranks: tuple[float, ...]
    n_tokens: Int[np.ndarray, " stratum"]
    """Tokens that were read, at each depth."""
    mean: Float[np.ndarray, "reading depth stratum"]
    mean_ci: Float[np.ndarray, "reading depth end"]
    """95 % bootstrap interval of the body's mean over documents: low, high."""
    quantiles: Float[np.ndarray, "reading depth stratum quantile"]
    agreement: Float[np.ndarray, "depth stratum"]
    """Share of tokens whose likeliest next token is the model's own."""

    def reading(self, name: str, *, stratum: str = "body") -> Float[np.ndarray, " depth"]:
        """The mean of one reading by depth."""
        return self.mean[self.readings.index(name), :, self.strata.index(stratum)]

    def to_dataframe(self) -> "pd.DataFrame":
        """One row a depth and stratum."""
        import pandas as pd

        rows = []
        for depth, point in enumerate(self.depths):
            for stratum, name in enumerate(self.strata):
                row: dict[str, object] = {
                    "depth": depth,
                    "point": point,
                    "layer": int(self.layers[depth]),
                    "stratum": name,
                    "n_tokens": int(self.n_tokens[stratum]),
                    "agreement": self.agreement[depth, stratum],
                }
                for index, reading in enumerate(self.readings):
                    row[f"{reading}_mean"] = self.mean[index, depth, stratum]
                    for place, rank in enumerate(self.quantile_ranks):
                        quantile = self.quantiles[index, depth, stratum, place]
                        row[f"{reading}_q{round(100 * rank):02d}"] = quantile
                rows.append(row)
        return pd.DataFrame(rows)

    def plot(self) -> "go.Figure":
        """KL to the model's output, cross-entropy and entropy by depth, with 5-95 % bands."""
        from resstream.figures.profile import Series, layer_profile

        at = np.arange(len(self.depths), dtype=np.float64)
        shown = {"KL to the output": 1, "cross-entropy": 0, "entropy": 2}
        series = [
            Series(
                name=name,
                values=self.mean[index, :, _BODY],
                low=self.quantiles[index, :, _BODY, 0] if index == 1 else None,
                high=self.quantiles[index, :, _BODY, -1] if index == 1 else None,
                at=at,
            )
            for name, index in shown.items()
        ]
        return layer_profile(
            series,
            value_title="nats per token (mean; band: 5-95 % of the KL)",
            layer_title="depth: writes passed (0 is the embedding)",
        )


def lens_profile(  # noqa: PLR0913  (options of an analysis)
    model: StreamModel,
    texts: Texts | Corpus = None,
    *,
    n_sampled: int | None = 512,
    mid: bool = True,
    seed: int = 0,
    translate: Translate | None = None,
    progress: Progress | None = None,
) -> LensProfileResult:
    """Read the stream at every depth over a text, as `logit_lens` does, and keep only statistics.

    Args:
        model: A causal language model.
        texts: What it reads, or a corpus made of it.
        n_sampled: About how many tokens to read, evenly from all sequences, and the first of each
            in any case; None reads all.  A token costs a readout at every depth.
        mid: Also read between the two writes of a block.
        seed: Of the sample and of the intervals.
        translate: Applied to the stream at each depth but the last before it is read.
        progress: Called after each batch.

    Raises:
        UnsupportedModelError: The model predicts no tokens.
        ConfigError: `n_sampled` is below 1.
        TextError: The text can't be used.
    """
    model.require_language_model("lens_profile")
    if n_sampled is not None and n_sampled < 1:
        raise ConfigError(f"n_sampled must be at least 1, or None for all tokens, got {n_sampled}")
    corpus = read_corpus(model, texts, seed=seed)
    points = stream_points(model.spec, mid=mid)
    sums = _Sums(len(points), len(corpus.sequences))
    done = 0
    for batch, at in _batches(corpus, n_sampled, seed):
        _read_batch(model, batch, points, Asked(at=at, translate=translate), sums)
        done += len(batch.rows)
        if progress is not None:
            progress(done, len(corpus.sequences))
    return _result(model, corpus, points, sums, seed)


class _Sums:
    """What is kept of all tokens: it grows with the sequences, not with the tokens."""

    def __init__(self, n_depths: int, n_sequences: int) -> None:
        self.statistics = TokenStatistics(len(READINGS) + 1, n_depths)
        self.totals = np.zeros((len(READINGS), n_depths, n_sequences))
        self.counts = np.zeros((len(READINGS), n_depths, n_sequences), dtype=np.int64)


def _batches(
    corpus: Corpus, n_sampled: int | None, seed: int
) -> Iterator[tuple[Batch, Int[Tensor, " sample"]]]:
    """Batches, and which positions of each are read."""
    generator = torch.Generator().manual_seed(seed)
    each = None if n_sampled is None else max(1, round(n_sampled / len(corpus.sequences)))
    for batch in corpus.batches(_BATCH_TOKENS):
        length = batch.tokens.shape[1]
        if each is None or each >= length - 2:
            yield batch, torch.arange(length - 1)
        else:
            drawn = 1 + torch.randperm(length - 2, generator=generator)[:each]
            yield batch, torch.cat([torch.zeros(1, dtype=torch.long), drawn.sort().values])


def _read_batch(
    model: StreamModel, batch: Batch, points: Sequence[Point], asked: Asked, sums: _Sums
) -> None:
    at = asked.at
    assert at is not None, "a profile says which positions it reads"
    streams, final = run_streams(model, batch.tokens, points)
    strata = stratify(np.stack([row_norms(stream) for stream in streams]))[:, at.numpy()]
    own = final[:, at.to(final.device)].argmax(-1).cpu()
    read = read_streams(model, batch.tokens, streams, final, points, asked)
    values = np.stack(
        [
            np.concatenate(
                [
                    reading.stack().numpy(force=True),
                    (reading.best[None, ..., 0].cpu() == own).numpy(),
                ]
            )
            for reading in read
        ],
        axis=1,
    )
    flat = values.reshape(*values.shape[:2], -1)
    sums.statistics.update(flat, strata.ravel())
    body = (strata == _BODY) & np.isfinite(values[: len(READINGS)])
    sums.totals[..., list(batch.rows)] = np.where(body, values[: len(READINGS)], 0.0).sum(-1)
    sums.counts[..., list(batch.rows)] = body.sum(-1)


def _result(
    model: StreamModel, corpus: Corpus, points: Sequence[Point], sums: _Sums, seed: int
) -> LensProfileResult:
    *readings, agreement = sums.statistics.summaries()
    return LensProfileResult(
        provenance=provenance_of(model, corpus.description, corpus.hash, seed=seed),
        model=model.name,
        text=corpus.description,
        depths=tuple(point.label for point in points),
        layers=np.array([point.layer for point in points]),
        readings=READINGS,
        strata=STRATA,
        quantile_ranks=QUANTILES,
        n_tokens=agreement.count[0],
        mean=np.stack([summary.mean for summary in readings]),
        mean_ci=_intervals(sums, np.array(corpus.documents), seed),
        quantiles=np.stack([summary.quantiles for summary in readings]),
        agreement=agreement.mean,
    )


def _intervals(
    sums: _Sums, documents: Int[np.ndarray, " sequence"], seed: int
) -> Float[np.ndarray, "reading depth end"]:
    ends = np.full((*sums.totals.shape[:2], 2), np.nan)
    for place in np.ndindex(ends.shape[:2]):
        totals, counts = by_document(sums.totals[place], sums.counts[place], documents)
        if (counts > 0).all():
            ends[place] = bootstrap_interval(totals, counts, seed=seed)
    return ends
