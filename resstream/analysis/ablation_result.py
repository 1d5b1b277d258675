"""What ablating gave: the effect of each write, block, group or head, with intervals."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from jaxtyping import Float

from resstream.stream.result import Result

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


@dataclass(frozen=True, slots=True, kw_only=True)
class AblationEffect:
    """The effect of one ablation."""

    layer: int
    """First block that it touches."""
    write: str
    """`attn`, `mlp`, `mixer`, or `block` for all writes of the block (or group) together."""
    kind: str
    effect: float
    """Cross-entropy with the change less that without, in nats per predicted token."""
    ci: tuple[float, float]
    """95 % bootstrap interval over documents."""
    n_tokens: int
    """Predicted tokens that it was measured on."""
    layers: tuple[int, ...]
    """All blocks that it touches."""
    head: int | None = None
    """Which attention head of the write, counted from 0; None for the whole write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEffects:
    """Losses token by token, in nats; NaN behind the end of shorter sequences."""

    base: Float[np.ndarray, "sequence predicted"]
    """Cross-entropy of the clean run; column 0 is the prediction of the second token."""
    effects: Float[np.ndarray, "ablation sequence predicted"]
    """Cross-entropy with the change less that without, in the order of the effects."""


@dataclass(frozen=True, kw_only=True)
class AblationResult(Result):
    """Effects of ablating writes, in the order of execution."""

    schema: ClassVar[str] = "resstream.ablate/1"

    model: str
    text: str
    base_loss: float
    """Cross-entropy of the clean run, in nats per predicted token."""
    effects: tuple[AblationEffect, ...]
    by_token: TokenEffects | None = None
    """Only if it was asked for."""
    layer_tokens: int = 0
    """Positions that went through a block, the unchanged runs included."""
    warnings: tuple[str, ...] = ()

    def to_dataframe(self) -> "pd.DataFrame":
        """One row an ablation; effects and interval ends in nats per token."""
        import pandas as pd

        rows = [
            {
                "layer": item.layer,
                "write": item.write,
                "head": item.head,
                "layers": " ".join(map(str, item.layers)),
                "kind": item.kind,
                "effect_nats": item.effect,
                "ci_low_nats": item.ci[0],
                "ci_high_nats": item.ci[1],
                "n_tokens": item.n_tokens,
            }
            for item in self.effects
        ]
        table = pd.DataFrame(rows)
        return table.astype({"head": "Int64"}) if rows else table

    def plot(self) -> "go.Figure":
        """Bars by layer with intervals, or a heatmap over layers and heads.

        Harmful writes (negative effect) have a colour of their own.
        """
        if any(item.head is not None for item in self.effects):
            return self._plot_heads()
        from resstream.figures.bars import BarGroup, ablation_bars

        names = dict.fromkeys(item.write for item in self.effects)
        groups: list[BarGroup] = []
        for name in names:
            items = [item for item in self.effects if item.write == name]
            groups.append(
                BarGroup(
                    name=name,
                    layers=np.array([item.layer for item in items]),
                    effects=np.array([item.effect for item in items]),
                    low=np.array([item.ci[0] for item in items]),
                    high=np.array([item.ci[1] for item in items]),
                )
            )
        return ablation_bars(groups)

    def _plot_heads(self) -> "go.Figure":
        from resstream.figures.heatmap import layer_head_heatmap

        places = [(item.layer, item.head or 0) for item in self.effects]
        n_layers, n_heads = (1 + max(column) for column in zip(*places, strict=True))
        values = np.full((n_layers, n_heads), np.nan)
        for place, item in zip(places, self.effects, strict=True):
            values[place] = item.effect
        return layer_head_heatmap(
            values,
            value_title="effect on the loss, nats per token (blue: the head was useful)",
        )
