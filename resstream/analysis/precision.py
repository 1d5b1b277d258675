"""What does the stream lose in a narrow type?  The same model in two types, in lock-step.

A write that is small beside the stream is rounded away when it is added: in bfloat16 (8 bits of
mantissa) half of it is gone where the stream's channels are some 256 times as large.

Reference: Micikevicius et al. (2018), "Mixed Precision Training", for the update that vanishes.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from resstream.analysis.losses import token_divergences
from resstream.analysis.points import Point, stream_points
from resstream.errors import ConfigError, UnsupportedModelError
from resstream.recording.ledger import row_norms
from resstream.recording.online import QUANTILES, TokenStatistics
from resstream.recording.strata import stratify
from resstream.shapes import STRATA
from resstream.stream.model import StreamModel
from resstream.stream.provenance import provenance_of
from resstream.stream.result import Result
from resstream.stream.texts import Corpus, Texts, read_corpus

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

Narrow = Literal["bfloat16", "float16"]

_BATCH_TOKENS = 512
_METRICS = ("drift", "write_error", "lost_share", "size_ratio")


@dataclass(frozen=True, kw_only=True)
class PrecisionResult(Result):
    """How far a run in a narrow type is from the run in the model's own, by depth.

    Row 0 of the arrays of writes is the embedding, where nothing was written: NaN.
    """

    schema: ClassVar[str] = "resstream.precision/1"

    model: str
    text: str
    narrow: str
    wide: str
    depths: tuple[str, ...]
    layers: Int[np.ndarray, " depth"]
    strata: tuple[str, ...]
    quantile_ranks: tuple[float, ...]
    drift: Float[np.ndarray, "depth stratum quantile"]
    """|narrow stream - wide stream| / |wide stream|, quantiles over tokens."""
    write_error: Float[np.ndarray, "depth stratum quantile"]
    """|(new stream - old stream) - write| / |write| in the narrow run: what rounding does to it."""
    lost_share: Float[np.ndarray, "depth stratum quantile"]
    """Share of the channels where a write that is not zero changes nothing."""
    size_ratio: Float[np.ndarray, "depth stratum quantile"]
    """|stream| / |write|; from about 60 on, bfloat16 loses more than a tenth of the write."""
    kl_nats: float
    """Mean KL(wide output || narrow output) a token, in nats; NaN without a vocabulary."""

    def to_dataframe(self) -> "pd.DataFrame":
        """One row a depth and stratum, medians and 95 % quantiles."""
        import pandas as pd

        rows = []
        for depth, point in enumerate(self.depths):
            for stratum, name in enumerate(self.strata):
                row: dict[str, object] = {"depth": depth, "point": point, "stratum": name}
                for metric in _METRICS:
                    for place, rank in enumerate(self.quantile_ranks):
                        if rank >= 0.5:
                            value = getattr(self, metric)[depth, stratum, place]
                            row[f"{metric}_q{round(100 * rank)}"] = value
                rows.append(row)
        return pd.DataFrame(rows)

    def plot(self) -> "go.Figure":
        """Drift, error of the writes and lost share by depth (median of the body)."""
        from resstream.figures.profile import Series, layer_profile

        middle = self.quantile_ranks.index(0.5)
        names = {"drift of the stream": "drift", "error of the write": "write_error"}
        series = [
            Series(name=name, values=getattr(self, metric)[:, 0, middle])
            for name, metric in (names | {"lost share of the write": "lost_share"}).items()
        ]
        return layer_profile(
            series,
            value_title=f"share ({self.narrow} against {self.wide})",
            layer_title="depth: writes passed (0 is the embedding)",
        )


def precision_drift(
    model: StreamModel,
    texts: Texts | Corpus = None,
    *,
    narrow: Narrow = "bfloat16",
    seed: int = 0,
) -> PrecisionResult:
    """Run a copy of the model in a narrow type on the same tokens and compare every depth.

    Args:
        model: Any model of text, in a wider type; a copy of it is held for the time of the run.
        texts: What it reads, or a corpus made of it.
        narrow: Type of the copy's weights and stream.
        seed: Of random ids where there is no text.

    Raises:
        ConfigError: The model is not wider than `narrow`.
        UnsupportedModelError: A norm stands in the stream (Post-LN), so that nothing is just added.
        TextError: The text can't be used.
    """
    dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(narrow)
    if dtype is None:
        raise ConfigError(f"narrow must be bfloat16 or float16, got {narrow!r}")
    if model.dtype.itemsize <= dtype.itemsize:
        raise ConfigError(f"the model must be wider than {narrow}, and is {model.dtype}")
    if any(block.stream_norms for block in model.spec.blocks):
        raise UnsupportedModelError(f"{model.name} norms its stream after each write (Post-LN)")
    corpus = read_corpus(model, texts, seed=seed)
    other = StreamModel(copy.deepcopy(model.module).to(dtype), name=model.name)
    points = stream_points(model.spec)
    statistics = TokenStatistics(len(_METRICS), len(points))
    divergence: list[float] = []
    for batch in corpus.batches(_BATCH_TOKENS):
        wide, _, output = _run(model, batch.tokens, points)
        low, writes, narrowed = _run(other, batch.tokens, points)
        values = np.stack([_compare(*each) for each in _steps(wide, low, writes)], axis=1)
        strata = stratify(np.stack([row_norms(stream) for stream in wide]))
        statistics.update(values.reshape(*values.shape[:2], -1), strata.ravel())
        if model.spec.d_vocab:
            divergence += token_divergences(output, narrowed).flatten().tolist()
    summaries = [summary.quantiles for summary in statistics.summaries()]
    return PrecisionResult(
        provenance=provenance_of(model, corpus.description, corpus.hash, seed=seed),
        model=model.name,
        text=corpus.description,
        narrow=narrow,
        wide=str(model.dtype).removeprefix("torch."),
        depths=tuple(point.label for point in points),
        layers=np.array([point.layer for point in points]),
        strata=STRATA,
        quantile_ranks=QUANTILES,
        kl_nats=float(np.mean(divergence)) if divergence else float("nan"),
        **dict(zip(_METRICS, summaries, strict=True)),
    )


@torch.no_grad()
def _run(
    model: StreamModel, tokens: Int[Tensor, "batch pos"], points: Sequence[Point]
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Streams at the points, what was written between each two, and the output."""
    kept: dict[str, Tensor] = {}

    def keeping(site: str) -> Callable[[Tensor], None]:
        return lambda value: kept.update({site: value.detach().clone()})

    sites = [point.site for point in points] + [write.site for write in model.spec.writes]
    output = model.run(tokens, {site: keeping(site) for site in sites})
    writes: list[Tensor] = []
    for block in model.spec.blocks:
        own = [kept[write.site] for write in block.writes]
        apart = sum(point.layer == block.layer for point in points) == len(own)
        writes += own if apart else [torch.stack([part.float() for part in own]).sum(0)]
    return [kept[point.site] for point in points], writes, output


def _steps(
    wide: Sequence[Tensor], low: Sequence[Tensor], writes: Sequence[Tensor]
) -> list[tuple[Tensor, Tensor, Tensor | None, Tensor | None]]:
    """At each depth: both streams, the narrow stream before, and what was written."""
    first = (wide[0], low[0], None, None)
    return [first, *zip(wide[1:], low[1:], low, writes, strict=False)]


def _compare(
    wide: Tensor, low: Tensor, before: Tensor | None, write: Tensor | None
) -> Float[np.ndarray, "metric batch pos"]:
    exact = low.double()
    drift = (exact - wide.double()).norm(dim=-1) / wide.double().norm(dim=-1)
    if before is None or write is None:
        nothing = torch.full_like(drift, torch.nan)
        return torch.stack([drift, nothing, nothing, nothing]).cpu().numpy()
    old, own = before.double(), write.double()
    size = own.norm(dim=-1)
    written = own != 0
    lost = (written & (low == before)).sum(-1) / written.sum(-1)
    error = (exact - old - own).norm(dim=-1) / size
    return torch.stack([drift, error, lost.double(), old.norm(dim=-1) / size]).cpu().numpy()
