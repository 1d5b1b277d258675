"""What would the model say if it stopped here?  Every point of the stream, read by its own readout.

Reference: nostalgebraist (2020), "interpreting GPT: the logit lens".
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from resstream.analysis.points import Point, run_streams, stream_points
from resstream.analysis.readings import Reading, read_logits
from resstream.analysis.vocabulary import Target, token_ids, token_texts
from resstream.errors import ConfigError
from resstream.stream.model import StreamModel
from resstream.stream.provenance import provenance_of
from resstream.stream.result import Result
from resstream.stream.texts import Corpus, Texts, read_corpus

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

NONE = -1
"""Stands for "no token" in arrays of token ids and ranks."""

_BATCH_TOKENS = 512

Translate = Callable[
    [Float[Tensor, "batch pos d_model"], Point], Float[Tensor, "batch pos d_model"]
]
"""Changes the stream of a point before it is read (tuned lens)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Asked:
    """What is wanted of a reading beside loss, KL, entropy and rank."""

    top_k: int = 1
    """How many of the likeliest tokens."""
    targets: Int[Tensor, " target"] | None = None
    """Tokens whose probability and rank are wanted."""
    at: Int[Tensor, " sample"] | None = None
    """Positions to read; all if None."""
    translate: Translate | None = None
    """Applied to the stream before it is read, but not at the last depth."""


_NOTHING_MORE = Asked()


@dataclass(frozen=True, kw_only=True)
class LogitLensResult(Result):
    """What the stream says at each depth, for each token of some prompts.

    Shorter prompts are filled up with NaN, and with -1 in arrays of ids and ranks.
    """

    schema: ClassVar[str] = "resstream.logit_lens/1"

    model: str
    text: str
    depths: tuple[str, ...]
    """Name of each depth: ``embed``, ``L3 attn`` (after that write), ``L3`` (after the block)."""
    layers: Int[np.ndarray, " depth"]
    """The block that wrote last; -1 before the first."""
    tokens: Int[np.ndarray, "batch pos"]
    loss_nats: Float[np.ndarray, "depth batch pos"]
    """Cross-entropy of the token that came next, in nats; NaN at the last position."""
    kl_nats: Float[np.ndarray, "depth batch pos"]
    """KL(model's output || lens), in nats; 0 at the last depth."""
    entropy_nats: Float[np.ndarray, "depth batch pos"]
    rank: Int[np.ndarray, "depth batch pos"]
    """How many tokens are likelier than the one that came next: 0 is the first choice."""
    top_tokens: Int[np.ndarray, "depth batch pos k"]
    """The likeliest tokens."""
    top_probs: Float[np.ndarray, "depth batch pos k"]
    targets: Int[np.ndarray, " target"]
    """The tokens that were asked for."""
    target_probs: Float[np.ndarray, "depth batch pos target"]
    target_ranks: Int[np.ndarray, "depth batch pos target"]
    vocabulary: dict[str, str]
    """Text of each token that occurs here, by its id."""

    def texts_of(self, ids: Int[np.ndarray, "*shape"]) -> Sequence[str]:
        """The texts of token ids, in one flat list."""
        return [self.vocabulary[str(index)] for index in np.asarray(ids).ravel().tolist()]

    def to_dataframe(self) -> "pd.DataFrame":
        """One row a depth, prompt and position; losses, KL and entropy in nats."""
        import pandas as pd

        depth, row, pos = (index.ravel() for index in np.indices(self.rank.shape))
        there = self.tokens[row, pos] != NONE
        depth, row, pos = depth[there], row[there], pos[there]
        at = (depth, row, pos)
        columns = {
            "depth": depth,
            "point": [self.depths[index] for index in depth],
            "layer": self.layers[depth],
            "prompt": row,
            "position": pos,
            "token": self.texts_of(self.tokens[row, pos]),
            "top_token": self.texts_of(self.top_tokens[*at, 0]),
            "top_prob": self.top_probs[*at, 0],
            "entropy_nats": self.entropy_nats[at],
            "kl_nats": self.kl_nats[at],
            "loss_nats": self.loss_nats[at],
            "rank": self.rank[at],
        }
        for index, name in enumerate(self.texts_of(self.targets)):
            columns[f"prob of {name!r}"] = self.target_probs[*at, index]
            columns[f"rank of {name!r}"] = self.target_ranks[*at, index]
        return pd.DataFrame(columns)

    def plot(self, prompt: int = 0) -> "go.Figure":
        """Table of the likeliest token by depth and position of one prompt."""
        from resstream.figures.lens_table import LensCells, lens_table

        length = int((self.tokens[prompt] != NONE).sum())
        ids = self.top_tokens[:, prompt, :length]
        texts = np.array(self.texts_of(ids), dtype=object).reshape(ids.shape).tolist()
        cells = LensCells(texts, ids, self.top_probs[:, prompt, :length])
        return lens_table(cells, self.texts_of(self.tokens[prompt, :length]), self.depths)


def logit_lens(  # noqa: PLR0913  (options of an analysis)
    model: StreamModel,
    texts: Texts | Corpus = None,
    *,
    targets: Target | Sequence[Target] | None = None,
    top_k: int = 5,
    bos: bool | None = None,
    mid: bool = True,
    translate: Translate | None = None,
) -> LogitLensResult:
    r"""Read the stream at every point through the model's own final norm and head.

    At depth :math:`i` the logits are :math:`\text{readout}(x_i)`, with whatever bias, scale and
    soft-cap the model's end has; the last depth is the model's output to the bit.  Early streams
    are not written in the basis that the head reads, so a wild answer there says little; see
    `resstream.analysis.tuned_lens`.  All readings are held: for a long text use `lens_profile`.

    Args:
        model: A causal language model.
        texts: Prompts, or a short text.
        targets: Tokens (texts or ids) whose probability and rank are wanted as well.
        top_k: How many of the likeliest tokens to keep.
        bos: Begin with the BOS token; None does as the tokenizer does.
        mid: Also read between the two writes of a block.
        translate: Applied to the stream at each depth but the last before it is read.

    Returns:
        Readings for every depth, prompt and position.

    Raises:
        UnsupportedModelError: The model predicts no tokens.
        ConfigError: `top_k` is not in ``1..d_vocab``.
        TextError: A target is not one token, or the text can't be used.

    References:
        nostalgebraist (2020), "interpreting GPT: the logit lens".
    """
    model.require_language_model("logit_lens")
    _check_top_k(model, top_k)
    wanted = torch.tensor(token_ids(model, _listed(targets)), dtype=torch.long)
    corpus = read_corpus(model, texts, bos=bos)
    points = stream_points(model.spec, mid=mid)
    asked = Asked(top_k=top_k, targets=wanted, translate=translate)
    collected = _Collected.empty(len(points), corpus, top_k, len(wanted))
    for batch in corpus.batches(_BATCH_TOKENS):
        for depth, reading in enumerate(read_depths(model, batch.tokens, points, asked)):
            collected.put(depth, batch.rows, reading)
    tokens = _padded(corpus)
    return LogitLensResult(
        provenance=provenance_of(model, corpus.description, corpus.hash, seed=0),
        model=model.name,
        text=corpus.description,
        depths=tuple(point.label for point in points),
        layers=np.array([point.layer for point in points]),
        tokens=tokens,
        targets=wanted.numpy(),
        vocabulary=_vocabulary(model, tokens, collected.arrays["top_tokens"], wanted.numpy()),
        **collected.arrays,
    )


def read_depths(
    model: StreamModel,
    tokens: Int[Tensor, "batch pos"],
    points: Sequence[Point],
    asked: Asked = _NOTHING_MORE,
) -> Iterator[Reading]:
    """Read one batch at every point, one depth at a time: only one depth's logits are held.

    Args:
        model: The model.
        tokens: Token ids.
        points: Where to read; the last must be the model's last.
        asked: What is wanted beside the basic readings.
    """
    streams, final = run_streams(model, tokens, points)
    yield from read_streams(model, tokens, streams, final, points, asked)


@torch.no_grad()
def read_streams(
    model: StreamModel,
    tokens: Int[Tensor, "batch pos"],
    streams: Sequence[Float[Tensor, "batch pos d_model"]],
    final: Float[Tensor, "batch pos d_vocab"],
    points: Sequence[Point],
    asked: Asked = _NOTHING_MORE,
) -> Iterator[Reading]:
    """As `read_depths`, for streams and an output that were computed already."""
    following = torch.full_like(tokens, NONE)
    following[:, :-1] = tokens[:, 1:]
    at = asked.at
    if at is not None:
        following, final = following[:, at], final[:, at.to(final.device)]
    last = len(streams) - 1
    for depth, stream in enumerate(streams):
        chosen = stream if at is None else stream[:, at.to(stream.device)]
        if depth == last and at is not None:
            logits = final  # fewer rows in the head's product could round otherwise
        elif depth == last or asked.translate is None:
            logits = model.readout(chosen)
        else:
            logits = model.readout(asked.translate(chosen, points[depth]))
        yield read_logits(logits, final, following, top_k=asked.top_k, targets=asked.targets)


@dataclass(frozen=True, slots=True)
class _Collected:
    """The arrays of a result while they are filled."""

    arrays: dict[str, np.ndarray]

    @classmethod
    def empty(cls, n_depths: int, corpus: Corpus, top_k: int, n_targets: int) -> "_Collected":
        shape = (n_depths, len(corpus.sequences), max(map(len, corpus.sequences)))
        return cls(
            {
                "loss_nats": np.full(shape, np.nan),
                "kl_nats": np.full(shape, np.nan),
                "entropy_nats": np.full(shape, np.nan),
                "rank": np.full(shape, NONE, dtype=np.int64),
                "top_tokens": np.full((*shape, top_k), NONE, dtype=np.int64),
                "top_probs": np.full((*shape, top_k), np.nan),
                "target_probs": np.full((*shape, n_targets), np.nan),
                "target_ranks": np.full((*shape, n_targets), NONE, dtype=np.int64),
            }
        )

    def put(self, depth: int, rows: Sequence[int], reading: Reading) -> None:
        values = (
            reading.loss,
            reading.kl,
            reading.entropy,
            reading.rank,
            reading.best,
            reading.best_probs,
            reading.target_probs,
            reading.target_ranks,
        )
        for array, value in zip(self.arrays.values(), values, strict=True):
            array[depth, list(rows), : value.shape[1]] = value.numpy(force=True)


def _check_top_k(model: StreamModel, top_k: int) -> None:
    size = model.spec.d_vocab or 0
    if not 1 <= top_k <= size:
        raise ConfigError(f"top_k must be in 1..{size} (d_vocab), got {top_k}")


def _listed(targets: Target | Sequence[Target] | None) -> Sequence[Target]:
    if targets is None:
        return ()
    return (targets,) if isinstance(targets, str | int) else targets


def _padded(corpus: Corpus) -> Int[np.ndarray, "batch pos"]:
    tokens = np.full((len(corpus.sequences), max(map(len, corpus.sequences))), NONE, dtype=np.int64)
    for row, sequence in zip(tokens, corpus.sequences, strict=True):
        row[: len(sequence)] = sequence.numpy()
    return tokens


def _vocabulary(model: StreamModel, *ids: np.ndarray) -> dict[str, str]:
    used = np.unique(np.concatenate([array.ravel() for array in ids]))
    used = used[used != NONE].tolist()
    return {str(index): text for index, text in zip(used, token_texts(model, used), strict=True)}
