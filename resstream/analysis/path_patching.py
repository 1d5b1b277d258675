"""Which write acts on which later write directly?  Path patching, from write to write.

The direct path from a sender s to a receiver r is patched alone: the receiver reads the stream of
the run patched into, plus what the other run's s has more than its own, and everything between
stays as it was.  What r then writes takes the place of its write, and the model runs on from there.
 The last receiver is the readout itself, so its column is the direct effect on the answer.

References:
    Wang et al. (2022), "Interpretability in the Wild", arXiv:2211.00593;
    Goldowsky-Dill et al. (2023), "Localizing Model Behavior with Path Patching", arXiv:2304.05969.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from resstream.analysis.pairs import EncodedPair, Pairs, encode_pairs, read_pairs
from resstream.analysis.patch_result import pairs_hash
from resstream.errors import TextError, UnsupportedModelError
from resstream.stream.model import Frame, StreamModel
from resstream.stream.provenance import provenance_of
from resstream.stream.result import Result
from resstream.stream.sites import match_sites
from resstream.stream.spec import WriteSpec
from resstream.sweep.metrics import Direction, Meter, Metric, require_known
from resstream.sweep.replay import BaseRun, run_base

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

LOGITS = "logits"
"""The receiver that is no write: the readout."""


@dataclass(frozen=True, kw_only=True)
class PathPatchResult(Result):
    """Direct effects of writes on later writes, as they reach the answer."""

    schema: ClassVar[str] = "resstream.path_patch/1"

    model: str
    metric: str
    direction: str
    senders: tuple[str, ...]
    receivers: tuple[str, ...]
    """Writes, and `logits` last."""
    effects: Float[np.ndarray, "sender receiver"]
    """Change of the metric when that path alone is patched, mean over pairs; NaN where the receiver
    does not come after the sender."""

    def to_dataframe(self) -> "pd.DataFrame":
        """One row a path."""
        import pandas as pd

        places = np.argwhere(np.isfinite(self.effects))
        return pd.DataFrame(
            {
                "sender": [self.senders[row] for row, _ in places],
                "receiver": [self.receivers[column] for _, column in places],
                f"effect_{self.metric}": self.effects[tuple(places.T)],
            }
        )

    def plot(self) -> "go.Figure":
        """Heatmap: senders upwards, receivers to the right."""
        from resstream.figures.heatmap import path_heatmap

        return path_heatmap(
            self.effects,
            self.senders,
            self.receivers,
            value_title=f"direct effect on {self.metric} (blue: up)",
            title=f"{self.direction} paths",
        )


def path_patch(
    model: StreamModel,
    pairs: Pairs,
    *,
    senders: Sequence[str] | None = None,
    receivers: Sequence[str] | None = None,
    metric: Metric = "logit_diff",
    direction: Direction = "denoising",
) -> PathPatchResult:
    """Patch every path from a sender to a later receiver, at all positions.

    Args:
        model: A causal language model whose writes add to the stream.
        pairs: Prompts and answers (see `resstream.analysis.pairs`).
        senders: Names or globs of writes (``blocks.*.attn_out``); all of them if None.
        receivers: Likewise; the readout is always the last receiver.
        metric: What is measured at the last position.
        direction: Which run is patched into.

    Raises:
        UnsupportedModelError: The model predicts no tokens, or its writes do not simply add up.
        UnknownSiteError: A name fits no write.
        TextError: The pairs can't be used.
        ConfigError: An unknown metric or direction.
    """
    model.require_language_model("path_patch")
    require_known(metric, direction)
    for block in model.spec.blocks:
        if block.stream_norms or block.opaque:
            raise UnsupportedModelError(
                f"path patching needs writes that add to the stream; block {block.layer} of "
                f"{model.name} {'norms the stream' if block.stream_norms else 'is opaque'}"
            )
    chosen = _chosen(model, senders), _chosen(model, receivers)
    encoded = encode_pairs(
        model,
        read_pairs(pairs),
        needs_answer=metric != "kl",
        needs_wrong=metric == "logit_diff",
    )
    if any(pair.noise is not None for pair in encoded):
        raise TextError("path patching needs corrupted prompts, got noise; replace tokens instead")
    parts = [_patch_paths(model, one, *chosen, metric, direction) for one in encoded]
    text = f"{len(encoded)} prompt pair{'s' * (len(encoded) > 1)}"
    return PathPatchResult(
        provenance=provenance_of(model, text, pairs_hash(encoded), seed=0),
        model=model.name,
        metric=metric,
        direction=direction,
        senders=tuple(write.label for write in chosen[0]),
        receivers=(*(write.label for write in chosen[1]), LOGITS),
        effects=np.mean(parts, axis=0),
    )


def _chosen(model: StreamModel, names: Sequence[str] | None) -> list[WriteSpec]:
    known = [write.site for write in model.spec.writes]
    wanted = set(known if names is None else match_sites(names, known))
    return [write for write in model.spec.writes if write.site in wanted]


@torch.no_grad()
def _patch_paths(
    model: StreamModel,
    pair: EncodedPair,
    senders: Sequence[WriteSpec],
    receivers: Sequence[WriteSpec],
    metric: Metric,
    direction: Direction,
) -> Float[np.ndarray, "sender receiver"]:
    clean, corrupted = pair.clean[None].to(model.device), pair.corrupted[None].to(model.device)
    target, source = (corrupted, clean) if direction == "denoising" else (clean, corrupted)
    sites = [write.site for write in model.spec.writes]
    base, other = run_base(model, target, sites), run_base(model, source, sites)
    clean_end = (other if direction == "denoising" else base).streams[-1][:, -1]
    meter = Meter(model, metric, [pair.answer], [pair.wrong], clean_end)
    before = meter(base.streams[-1][:, -1], [0])[0]
    frame = model.begin(target.expand(len(senders), -1))
    changes = torch.cat([other.values[s.site] - base.values[s.site] for s in senders])
    effects = np.full((len(senders), len(receivers) + 1), np.nan)
    for column, receiver in enumerate(receivers):
        rows = [row for row, sender in enumerate(senders) if _comes_before(model, sender, receiver)]
        if rows:
            last = _through(model, base, frame, receiver, _only(changes, rows))
            effects[rows, column] = meter(last[rows, -1], [0] * len(rows)) - before
    direct = base.streams[-1][:, -1] + changes[:, -1]
    effects[:, -1] = meter(direct, [0] * len(senders)) - before
    return effects


def _comes_before(model: StreamModel, sender: WriteSpec, receiver: WriteSpec) -> bool:
    """True if `receiver` reads what `sender` wrote; both writes of a parallel block read alike."""
    if sender.layer != receiver.layer:
        return sender.layer < receiver.layer
    order = [write.name for write in model.spec.blocks[sender.layer].writes]
    is_earlier = order.index(sender.name) < order.index(receiver.name)
    return is_earlier and not model.spec.blocks[sender.layer].parallel


def _only(changes: Tensor, rows: Sequence[int]) -> Tensor:
    """The changes of some senders; those of the others are nothing."""
    kept = torch.zeros_like(changes)
    kept[list(rows)] = changes[list(rows)]
    return kept


def _through(
    model: StreamModel, base: BaseRun, frame: Frame, receiver: WriteSpec, changes: Tensor
) -> Float[Tensor, "sender pos d_model"]:
    """The last streams with `receiver` reading ``stream + change``, and nothing else doing so."""
    layer, count = receiver.layer, len(changes)
    kept: dict[str, Tensor] = {}

    def hold(site: str) -> Callable[[Tensor], Tensor]:
        return lambda value: base.values[site].expand(count, -1, -1).to(value).clone()

    others = [write.site for write in model.spec.blocks[layer].writes if write != receiver]
    keep = {receiver.site: lambda value: kept.update(write=value.clone())}
    stream = base.streams[layer].expand(count, -1, -1)
    with model.hooked({**{site: hold(site) for site in others}, **keep}):
        model.run_block(layer, stream + changes, frame)
    with model.hooked({receiver.site: lambda value: kept["write"]}):
        stream = model.run_block(layer, stream.clone(), frame)
    for later in range(layer + 1, model.spec.n_layers):
        stream = model.run_block(later, stream, frame)
    return stream
