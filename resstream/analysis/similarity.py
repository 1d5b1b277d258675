"""Which depths are alike, and how far does each block move the stream?

References:
    Men et al. (2024), "ShortGPT" (block influence), arXiv:2403.03853.
    Gromov et al. (2024), "The Unreasonable Ineffectiveness of the Deeper Layers" (angle).
    Kornblith et al. (2019), "Similarity of Neural Network Representations Revisited" (CKA).
    Nguyen, Raghu and Kornblith (2021), arXiv:2010.15327 (the estimator without bias).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from resstream.analysis.sampling import sample_streams
from resstream.stream.model import StreamModel
from resstream.stream.provenance import provenance_of
from resstream.stream.result import Result
from resstream.stream.texts import Corpus, Texts, read_corpus

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


@dataclass(frozen=True, kw_only=True)
class SimilarityResult(Result):
    """Likeness of the stream at the embedding and after each block, over tokens of the body."""

    schema: ClassVar[str] = "resstream.similarity/1"

    model: str
    text: str
    depths: tuple[str, ...]
    n_tokens: int
    cosine: Float[np.ndarray, "depth depth"]
    """Mean cosine of a token's stream at two depths."""
    cka: Float[np.ndarray, "depth depth"]
    """Linear CKA, estimated without bias: near 0 for unrelated streams at any number of tokens."""
    block_influence: Float[np.ndarray, " layer"]
    """1 - mean cosine of a block's input and output; 0 to 2, blind to scale."""
    angular_distance: Float[np.ndarray, "span layer"]
    """arccos(cosine) / pi between the inputs of blocks `layer` and `layer + span`, mean over last
    tokens; row 0 is a span of 1; NaN beyond the last block."""
    n_last: int
    """Last tokens that the angular distance is a mean over."""

    def to_dataframe(self) -> "pd.DataFrame":
        """One row a pair of depths."""
        import pandas as pd

        one, other = (index.ravel() for index in np.indices(self.cosine.shape))
        span = other - one
        angle = np.full(len(one), np.nan)
        ahead = span > 0
        angle[ahead] = self.angular_distance[span[ahead] - 1, one[ahead]]
        return pd.DataFrame(
            {
                "depth": one,
                "point": [self.depths[index] for index in one],
                "other_depth": other,
                "other_point": [self.depths[index] for index in other],
                "cosine": self.cosine.ravel(),
                "cka": self.cka.ravel(),
                "angular_distance": angle,
            }
        )

    def plot(self) -> "go.Figure":
        """The matrix of cosines."""
        from resstream.figures.heatmap import similarity_matrix

        return similarity_matrix(self.cosine, self.depths)

    def plot_cka(self) -> "go.Figure":
        """The matrix of CKA."""
        from resstream.figures.heatmap import similarity_matrix

        return similarity_matrix(self.cka, self.depths, value_title="linear CKA (1: same geometry)")

    def plot_influence(self) -> "go.Figure":
        """Block influence by layer."""
        from resstream.figures.profile import Series, layer_profile

        series = [Series(name="block", values=self.block_influence)]
        return layer_profile(series, value_title="block influence (1 - cosine of input and output)")


def similarity(
    model: StreamModel,
    texts: Texts | Corpus = None,
    *,
    n_tokens: int = 512,
    seed: int = 0,
) -> SimilarityResult:
    """Compare the stream after each block with that after every other.

    A block of little influence is not thereby unimportant: ablate it to know.  First and massive
    tokens are left out; they are almost parallel at all depths.

    Args:
        model: Any model of text.
        texts: What it reads, or a corpus made of it.
        n_tokens: About how many tokens to compare; CKA takes memory in its square at each depth.
        seed: Of the sample.

    Raises:
        ConfigError: The sample is too small.
        TextError: The text can't be used.
    """
    corpus = read_corpus(model, texts, seed=seed)
    sample = sample_streams(model, corpus, n_tokens, seed=seed)
    body = sample.of_body().double()
    last = sample.streams[:, torch.from_numpy(sample.is_last & sample.is_body)].double()
    cosine = cosines(body).mean(-1)
    angle = torch.arccos(cosines(last).clamp(-1, 1)).mean(-1) / torch.pi
    return SimilarityResult(
        provenance=provenance_of(model, corpus.description, corpus.hash, seed=seed),
        model=model.name,
        text=corpus.description,
        depths=tuple(point.label for point in sample.points),
        n_tokens=body.shape[1],
        cosine=cosine.numpy(),
        cka=linear_cka(body).numpy(),
        block_influence=1 - cosine.diagonal(1).numpy(),
        angular_distance=_by_span(angle.numpy()),
        n_last=last.shape[1],
    )


def cosines(
    streams: Float[Tensor, "depth token d_model"],
) -> Float[Tensor, "depth depth token"]:
    """Cosine of each token's stream at each two depths; NaN for a zero stream."""
    unit = streams / streams.norm(dim=-1, keepdim=True)
    return torch.einsum("itd,jtd->ijt", unit, unit)


def linear_cka(streams: Float[Tensor, "depth token d_model"]) -> Float[Tensor, "depth depth"]:
    """Linear CKA of each two depths, from HSIC without bias (Song et al., 2012)."""
    n = streams.shape[1]
    centred = torch.stack([_u_centred(depth @ depth.T).flatten() for depth in streams])
    hsic = centred @ centred.T / (n * (n - 3))
    size = hsic.diagonal().sqrt()
    return hsic / (size[:, None] * size)


def _u_centred(gram: Float[Tensor, "token token"]) -> Float[Tensor, "token token"]:
    n = len(gram)
    gram = gram - torch.diag(gram.diagonal())
    rows = gram.sum(0) / (n - 2)
    centred = gram - rows - rows[:, None] + gram.sum() / ((n - 1) * (n - 2))
    return centred - torch.diag(centred.diagonal())


def _by_span(angle: Float[np.ndarray, "depth depth"]) -> Float[np.ndarray, "span layer"]:
    n_layers = len(angle) - 1
    spans = np.full((n_layers, n_layers), np.nan)
    for span in range(1, n_layers + 1):
        spans[span - 1, : n_layers + 1 - span] = angle.diagonal(span)
    return spans


def most_alike(result: SimilarityResult, span: int = 1) -> Int[np.ndarray, " layer"]:
    """First layers of the runs of `span` blocks, the one that moves the stream least first."""
    angles = result.angular_distance[span - 1]
    return np.argsort(angles)[: int(np.isfinite(angles).sum())]
