"""How many directions does the stream use, and which channels and tokens are out of all proportion?

References:
    Roy and Vetterli (2007), "The effective rank".
    Timkey and van Schijndel (2021), "All Bark and No Bite" (anisotropy without outlier channels).
    Sun et al. (2024), "Massive Activations in Large Language Models", arXiv:2402.17762.
    Dettmers et al. (2022), "LLM.int8()", arXiv:2208.07339 (outlier channels).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from resstream.analysis.sampling import Sample, sample_streams
from resstream.stream.model import StreamModel
from resstream.stream.provenance import provenance_of
from resstream.stream.result import Result
from resstream.stream.texts import Corpus, Texts, read_corpus

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

MASSIVE_RATIO = 1000.0
"""A channel of a token is massive if it is this many times the median size in its stream."""

_REMOVED = 3
"""Channels that anisotropy is given without: the largest ones."""

_TOKEN_SETS = ("body", "all")


@dataclass(frozen=True, slots=True, kw_only=True)
class MassiveActivation:
    """One channel that is out of all proportion, where it is largest."""

    point: str
    channel: int
    value: float
    ratio: float
    """Its size over the median size of all channels and tokens of that depth."""
    n_tokens: int
    """Tokens of the sample in which it is massive."""


@dataclass(frozen=True, kw_only=True)
class RankResult(Result):
    """Ranks and spread of the stream at the embedding and after each block.

    The axis `tokens` is: the body alone, and with first and massive tokens.
    """

    schema: ClassVar[str] = "resstream.ranks/1"

    model: str
    text: str
    depths: tuple[str, ...]
    token_sets: tuple[str, ...]
    n_tokens: Int[np.ndarray, " tokens"]
    effective_rank: Float[np.ndarray, "depth tokens"]
    """exp of the entropy of the singular values (not squared), after the mean is taken off."""
    participation_ratio: Float[np.ndarray, "depth tokens"]
    """(sum of eigenvalues)^2 / sum of squared eigenvalues of the covariance; at most n - 1."""
    stable_rank: Float[np.ndarray, "depth tokens"]
    """|X|_F^2 / |X|_2^2, after the mean is taken off."""
    anisotropy: Float[np.ndarray, "depth tokens"]
    """Mean cosine of two tokens of different sequences."""
    anisotropy_centred: Float[np.ndarray, "depth tokens"]
    """The same after the mean is taken off."""
    anisotropy_trimmed: Float[np.ndarray, "depth tokens"]
    """The same without the three largest channels of that depth."""
    channel_share: Float[np.ndarray, "depth tokens"]
    """Share of all squares that the largest channel holds."""
    massive: tuple[MassiveActivation, ...]

    def to_dataframe(self) -> "pd.DataFrame":
        """One row a depth and set of tokens."""
        import pandas as pd

        depth, tokens = (index.ravel() for index in np.indices(self.effective_rank.shape))
        columns: dict[str, object] = {
            "depth": depth,
            "point": [self.depths[index] for index in depth],
            "tokens": [self.token_sets[index] for index in tokens],
            "n_tokens": self.n_tokens[tokens],
        }
        columns |= {name: getattr(self, name).ravel() for name in _NUMBERS}
        return pd.DataFrame(columns)

    def plot(self) -> "go.Figure":
        """Effective rank and participation ratio of the body by depth."""
        from resstream.figures.profile import Series, layer_profile

        series = [
            Series(name="effective rank", values=self.effective_rank[:, 0]),
            Series(name="participation ratio", values=self.participation_ratio[:, 0]),
            Series(
                name="participation ratio, sinks included",
                values=self.participation_ratio[:, 1],
                aside=True,
            ),
        ]
        return layer_profile(
            series,
            value_title=f"directions (of {self.n_tokens[0]} tokens)",
            layer_title="depth: blocks passed (0 is the embedding)",
            log=True,
        )


_NUMBERS = (
    "effective_rank",
    "participation_ratio",
    "stable_rank",
    "anisotropy",
    "anisotropy_centred",
    "anisotropy_trimmed",
    "channel_share",
)


def ranks(
    model: StreamModel, texts: Texts | Corpus = None, *, n_tokens: int = 512, seed: int = 0
) -> RankResult:
    """Measure ranks, anisotropy and outliers of the stream on a sample of tokens.

    All ranks are bounded by the number of tokens: compare only at equal `n_tokens`.

    Args:
        model: Any model of text.
        texts: What it reads, or a corpus made of it.
        n_tokens: About how many tokens to draw.
        seed: Of the sample.

    Raises:
        ConfigError: The sample is too small.
        TextError: The text can't be used.
    """
    corpus = read_corpus(model, texts, seed=seed)
    sample = sample_streams(model, corpus, n_tokens, seed=seed)
    chosen = (sample.is_body, np.ones_like(sample.is_body))
    numbers = np.stack(
        [
            np.stack([_numbers(depth[torch.from_numpy(of)], sample.sequence[of]) for of in chosen])
            for depth in sample.streams.double()
        ]
    )
    return RankResult(
        provenance=provenance_of(model, corpus.description, corpus.hash, seed=seed),
        model=model.name,
        text=corpus.description,
        depths=tuple(point.label for point in sample.points),
        token_sets=_TOKEN_SETS,
        n_tokens=np.array([int(of.sum()) for of in chosen]),
        massive=tuple(_massive(sample)),
        **{name: numbers[..., index] for index, name in enumerate(_NUMBERS)},
    )


def _numbers(
    stream: Float[Tensor, "token d_model"], sequence: Int[np.ndarray, " token"]
) -> Float[np.ndarray, " number"]:
    centred = stream - stream.mean(0)
    singular = torch.linalg.svdvals(centred)
    energy = stream.square().sum(0)
    kept = torch.ones_like(energy)
    kept[energy.topk(min(_REMOVED, len(energy) - 1)).indices] = 0
    return np.array(
        [
            effective_rank(singular),
            participation_ratio(singular.square()),
            _ratio(singular.square().sum(), singular.max().square()),
            anisotropy(stream, sequence),
            anisotropy(centred, sequence),
            anisotropy(stream * kept, sequence),
            _ratio(energy.max(), energy.sum()),
        ]
    )


def effective_rank(singular: Float[Tensor, " value"]) -> float:
    """Exp of the entropy of singular values that are made to sum to 1; 0 if all are 0."""
    if not float(singular.sum()) > 0:
        return 0.0
    share = singular / singular.sum()
    return float(torch.special.entr(share).sum().exp())


def participation_ratio(eigenvalues: Float[Tensor, " value"]) -> float:
    """(sum)^2 over sum of squares; 0 if all are 0."""
    return _ratio(eigenvalues.sum().square(), eigenvalues.square().sum())


def anisotropy(
    stream: Float[Tensor, "token d_model"], sequence: Int[np.ndarray, " token"]
) -> float:
    """Mean cosine over all pairs of tokens of different sequences; NaN for one sequence."""
    unit = torch.nn.functional.normalize(stream, dim=-1)
    _, group = np.unique(sequence, return_inverse=True)
    sums = torch.zeros(int(group.max()) + 1, unit.shape[1], dtype=unit.dtype)
    sums.index_add_(0, torch.from_numpy(group), unit)
    counts = np.bincount(group)
    pairs = len(unit) ** 2 - int((counts**2).sum())
    across = sums.sum(0).square().sum() - sums.square().sum()
    return float(across) / pairs if pairs else float("nan")


def _ratio(above: Tensor, below: Tensor) -> float:
    return float(above / below) if float(below) > 0 else 0.0


def _massive(sample: Sample) -> list[MassiveActivation]:
    """Each massive channel once, where it is largest."""
    found: dict[int, MassiveActivation] = {}
    for point, stream in zip(sample.points, sample.streams, strict=True):
        size = stream.abs()
        ratio = size / size.median()
        for channel in (ratio >= MASSIVE_RATIO).any(0).nonzero()[:, 0].tolist():
            token = int(size[:, channel].argmax())
            item = MassiveActivation(
                point=point.label,
                channel=channel,
                value=float(stream[token, channel]),
                ratio=float(ratio[token, channel]),
                n_tokens=int((ratio[:, channel] >= MASSIVE_RATIO).sum()),
            )
            if channel not in found or abs(item.value) > abs(found[channel].value):
                found[channel] = item
    return sorted(found.values(), key=lambda item: -item.ratio)
