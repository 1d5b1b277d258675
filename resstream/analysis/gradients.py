"""How strongly does the loss pull at each point of the stream, and at each block's weights?

The gradient of a write equals that of the stream right behind it, as long as the stream is a sum.

Reference: Xiong et al. (2020), "On Layer Normalization in the Transformer Architecture".
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from resstream.analysis.losses import token_losses
from resstream.analysis.points import Point, stream_points
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

_BATCH_TOKENS = 512


@dataclass(frozen=True, kw_only=True)
class GradientResult(Result):
    """Norms of the gradient of the loss, in nats per unit of the stream or of the weights."""

    schema: ClassVar[str] = "resstream.gradients/1"

    model: str
    text: str
    depths: tuple[str, ...]
    layers: Int[np.ndarray, " depth"]
    strata: tuple[str, ...]
    quantile_ranks: tuple[float, ...]
    stream: Float[np.ndarray, "depth stratum quantile"]
    """Norm of the gradient of the summed loss to one token's stream, quantiles over tokens."""
    weights: Float[np.ndarray, " layer"]
    """Norm of the gradient of the mean loss to all weights of a block."""
    loss_nats: float
    """Mean cross-entropy."""

    def to_dataframe(self) -> "pd.DataFrame":
        """One row a depth; the block's weights beside the depth at its end."""
        import pandas as pd

        last = {layer: depth for depth, layer in enumerate(self.layers.tolist())}
        rows = []
        for depth, point in enumerate(self.depths):
            layer = int(self.layers[depth])
            ends = last[layer] == depth and layer >= 0
            row: dict[str, object] = {"depth": depth, "point": point, "layer": layer}
            for place, rank in enumerate(self.quantile_ranks):
                row[f"stream_q{round(100 * rank):02d}"] = self.stream[depth, 0, place]
            row["weights_norm"] = self.weights[layer] if ends else float("nan")
            rows.append(row)
        return pd.DataFrame(rows)

    def plot(self) -> "go.Figure":
        """Gradient of the stream by depth with a 5-95 % band, tokens of the body."""
        from resstream.figures.profile import Series, layer_profile

        middle = self.quantile_ranks.index(0.5)
        body = self.stream[:, 0]
        line = Series(name="stream", values=body[:, middle], low=body[:, 0], high=body[:, -1])
        return layer_profile(
            [line],
            value_title="norm of the gradient, nats per unit (median, 5-95 %)",
            layer_title="depth: writes passed (0 is the embedding)",
            log=True,
        )


def gradients(model: StreamModel, texts: Texts | Corpus = None, *, seed: int = 0) -> GradientResult:
    """Backpropagate the cross-entropy and keep norms; the model's own ``.grad`` is not touched.

    Args:
        model: A causal language model.
        texts: What it reads, or a corpus made of it.
        seed: Of random ids where there is no text.

    Raises:
        UnsupportedModelError: The model predicts no tokens.
        TextError: The text can't be used.
    """
    model.require_language_model("gradients")
    corpus = read_corpus(model, texts, seed=seed)
    points = stream_points(model.spec)
    statistics = TokenStatistics(1, len(points))
    blocks = [
        list(model.module.get_submodule(block.module).parameters()) for block in model.spec.blocks
    ]
    flat = [parameter for parameters in blocks for parameter in parameters]
    sums = [torch.zeros_like(parameter) for parameter in flat]
    total = 0.0
    for batch in corpus.batches(_BATCH_TOKENS):
        loss, streams, pulls, weights = _backward(model, batch.tokens, points, flat)
        total += loss
        for into, gradient in zip(sums, weights, strict=True):
            if gradient is not None:
                into += gradient
        strata = stratify(np.stack([row_norms(stream) for stream in streams]))
        norms = np.stack([row_norms(pull) for pull in pulls])
        statistics.update(norms.reshape(1, len(points), -1), strata.ravel())
    (summary,) = statistics.summaries()
    return GradientResult(
        provenance=provenance_of(model, corpus.description, corpus.hash, seed=seed),
        model=model.name,
        text=corpus.description,
        depths=tuple(point.label for point in points),
        layers=np.array([point.layer for point in points]),
        strata=STRATA,
        quantile_ranks=QUANTILES,
        stream=summary.quantiles,
        weights=_norms(blocks, sums) / corpus.n_predicted,
        loss_nats=total / corpus.n_predicted,
    )


def _backward(
    model: StreamModel,
    tokens: Int[Tensor, "batch pos"],
    points: Sequence[Point],
    weights: Sequence[nn.Parameter],
) -> tuple[float, list[Tensor], list[Tensor], tuple[Tensor | None, ...]]:
    """The summed loss, the streams, and the gradients to them and to `weights`."""
    kept: dict[str, Tensor] = {}

    def keeping(site: str) -> Callable[[Tensor], Tensor]:
        def keep(value: Tensor) -> Tensor:
            # The first stream becomes a leaf, so that frozen models have gradients too.
            kept[site] = value if value.requires_grad else value.detach().requires_grad_()
            # A copy goes on: some models add to the stream in place.
            return kept[site].clone()

        return keep

    asked = [parameter for parameter in weights if parameter.requires_grad]
    with torch.enable_grad():
        logits = model.run(tokens, {point.site: keeping(point.site) for point in points})
        loss = token_losses(logits, tokens).sum()
        streams = [kept[point.site] for point in points]
        # With allow_unused a gradient may be missing, which torch's own annotation leaves out.
        found: tuple[Any, ...] = torch.autograd.grad(loss, [*streams, *asked], allow_unused=True)
    pulls = [
        torch.zeros_like(stream) if pull is None else pull
        for stream, pull in zip(streams, found, strict=False)
    ]
    at = {id(parameter): g for parameter, g in zip(asked, found[len(streams) :], strict=True)}
    return (
        float(loss.detach()),
        [stream.detach() for stream in streams],
        pulls,
        tuple(at.get(id(parameter)) for parameter in weights),
    )


def _norms(
    blocks: Sequence[Sequence[nn.Parameter]], sums: Sequence[Tensor]
) -> Float[np.ndarray, " layer"]:
    remaining = iter(sums)
    squares = [
        sum(float(next(remaining).double().square().sum()) for _ in block) for block in blocks
    ]
    return np.sqrt(np.array(squares, dtype=np.float64))
