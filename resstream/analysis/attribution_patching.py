"""What would patching do, to first order?  All cells at once from one forward and one backward.

The effect of putting another run's value ``a'`` in the place of ``a`` is about ``<dm/da, a' - a>``,
with the gradient of the metric m in the run patched into.  It ranks cells; only running them
decides.

The estimate misses effects that cancel in the gradient.  AtP* answers with GradDrop: one backward
for each layer, with no gradient through that layer's writes, and the mean of the absolute
estimates, ``sum_l |estimate without l| / (L - 1)`` (its equation 11).  Its other correction,
recomputing the softmax (equations 7 to 10), concerns queries and keys, which are no sites here.

References:
    Nanda (2023), "Attribution patching"; Kramar et al. (2024), "AtP*", arXiv:2403.00745.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from resstream.analysis.noise import noised
from resstream.analysis.pairs import EncodedPair, Pairs, encode_pairs, read_pairs
from resstream.analysis.patch_result import draw_cells, pairs_hash, shown_tokens, stacked
from resstream.errors import ConfigError
from resstream.stream.model import StreamModel
from resstream.stream.provenance import provenance_of
from resstream.stream.result import Result
from resstream.sweep.metrics import Direction, Metric, require_known
from resstream.sweep.patches import PatchSite, at_site, head_count, patched_layers

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


@dataclass(frozen=True, kw_only=True)
class AttributionPatchResult(Result):
    """Estimated effects of patching, by layer and position (and head)."""

    schema: ClassVar[str] = "resstream.attribution_patch/1"

    model: str
    site: str
    metric: str
    direction: str
    grad_drop: bool
    """True if the estimates are GradDrop's: sizes without a sign."""
    tokens: tuple[str, ...]
    estimates: Float[np.ndarray, "layer pos *head"]
    """Estimated change of the metric, mean over pairs; NaN where the site is missing."""

    def to_dataframe(self) -> "pd.DataFrame":
        """One row a cell."""
        import pandas as pd

        places = np.argwhere(np.ones_like(self.estimates))
        table = pd.DataFrame(places, columns=["layer", "position", "head"][: places.shape[1]])
        table.insert(2, "token", [self.tokens[row[1]] for row in places])
        table[f"estimate_{self.metric}"] = self.estimates[tuple(places.T)]
        return table

    def plot(self) -> "go.Figure":
        """Heatmap over layers and positions; heads are summed over positions."""
        return draw_cells(
            self.estimates,
            self.tokens,
            value_title=f"estimated effect on {self.metric} (blue: up)",
            diverging=not self.grad_drop,
            title=f"{self.direction} {self.site}, first order",
        )


def attribution_patch(
    model: StreamModel,
    pairs: Pairs,
    *,
    site: PatchSite = "resid_pre",
    metric: Metric = "logit_diff",
    direction: Direction = "denoising",
    grad_drop: bool = False,
) -> AttributionPatchResult:
    """Estimate the effect of patching every layer and position.

    Args:
        model: A causal language model.
        pairs: Prompts and answers (see `resstream.analysis.pairs`).
        site: What would be patched.
        metric: What would be measured; `rank` has no gradient.
        direction: Which run would be patched into.
        grad_drop: Correct for cancelling gradients, as in AtP*; one backward for each layer.

    Raises:
        UnsupportedModelError: The model does not predict tokens.
        UnknownSiteError: The architecture has no such site.
        TextError: The pairs can't be used.
        ConfigError: An unknown option, or a metric without a gradient.
    """
    model.require_language_model("attribution_patch")
    require_known(metric, direction)
    encoded = encode_pairs(
        model,
        read_pairs(pairs),
        needs_answer=metric != "kl",
        needs_wrong=metric == "logit_diff",
    )
    parts = estimate_pairs(
        model, encoded, site=site, metric=metric, direction=direction, grad_drop=grad_drop
    )
    mean = stacked(parts).mean(0)
    text = f"{len(encoded)} prompt pair{'s' * (len(encoded) > 1)}"
    return AttributionPatchResult(
        provenance=provenance_of(model, text, pairs_hash(encoded), seed=0),
        model=model.name,
        site=site,
        metric=metric,
        direction=direction,
        grad_drop=grad_drop,
        tokens=shown_tokens(model, [pair.clean.tolist() for pair in encoded]),
        estimates=mean if site == "head_out" else mean[..., 0],
    )


def recall(estimates: np.ndarray, exact: np.ndarray, k: int) -> float:
    """Share of the `k` largest exact effects that are among the `k` largest estimates."""
    known = np.isfinite(exact.ravel()) & np.isfinite(estimates.ravel())
    one, two = (np.abs(values.ravel()[known]) for values in (estimates, exact))
    count = min(k, len(one))
    if count == 0:
        return float("nan")
    top = set(np.argsort(-one, kind="stable")[:count])
    return len(top & set(np.argsort(-two, kind="stable")[:count])) / count


def estimate_pairs(
    model: StreamModel,
    encoded: Sequence[EncodedPair],
    *,
    site: str,
    metric: str,
    direction: str,
    grad_drop: bool = False,
) -> list[Float[np.ndarray, "layer pos head"]]:
    """The estimates of each pair."""
    if metric == "rank":
        raise ConfigError("the metric must have a gradient to be estimated, got rank")
    layers = patched_layers(model, site)
    heads = (head_count(model) or 1) if site == "head_out" else 1
    return [
        _estimate(model, one, site, layers, heads, (metric, direction, grad_drop))
        for one in encoded
    ]


def _estimate(
    model: StreamModel,
    pair: EncodedPair,
    site: str,
    layers: Sequence[int],
    heads: int,
    how: tuple[str, str, bool],
) -> Float[np.ndarray, "layer pos head"]:
    metric, direction, grad_drop = how
    clean, corrupted = pair.clean[None], pair.corrupted[None]
    target, source = (corrupted, clean) if direction == "denoising" else (clean, corrupted)
    noises = (pair.noise, None) if direction == "denoising" else (None, pair.noise)
    with noised(model, noises[1]):
        others, logits = _values(model, source, site, layers)
    clean_logits = logits if direction == "denoising" else None
    found = np.full((model.spec.n_layers, pair.length, heads), np.nan)
    with torch.enable_grad(), noised(model, noises[0]), ExitStack() as stack:
        tape = _Tape(model, stack, site, layers, with_gates=grad_drop)
        last = model.forward(target)[0, -1]
        reference = last.detach() if clean_logits is None else clean_logits
        value = _measure(last, pair, metric, reference)
        if not grad_drop:
            _add(found, tape.gradients(value), tape.values, others, absolute=False)
            return found
        found[list(layers)] = 0.0
        for dropped in range(model.spec.n_layers):
            tape.dropped = dropped
            _add(found, tape.gradients(value), tape.values, others, absolute=True)
    return found / max(1, model.spec.n_layers - 1)


def _values(
    model: StreamModel, tokens: Tensor, site: str, layers: Sequence[int]
) -> tuple[dict[int, Tensor], Tensor]:
    kept: dict[int, Tensor] = {}

    def keeping(layer: int) -> Callable[[Tensor], None]:
        return lambda value: kept.update({layer: value.detach().clone()})

    with torch.no_grad(), ExitStack() as stack:
        for layer in layers:
            stack.enter_context(at_site(model, layer, site, keeping(layer)))
        return kept, model.forward(tokens)[0, -1]


class _Tape:
    """Hooks that add a zero at every site, whose gradient is the gradient of the site."""

    def __init__(
        self,
        model: StreamModel,
        stack: ExitStack,
        site: str,
        layers: Sequence[int],
        *,
        with_gates: bool,
    ) -> None:
        self.values: dict[int, Tensor] = {}
        self.dropped: int | None = None
        """The layer through whose writes no gradient goes."""
        self._zeros: dict[int, Tensor] = {}
        gates = {write.site: self._gate(write.layer) for write in model.spec.writes}
        # The stream between two writes is hooked at the first of them: its gate must come before.
        if with_gates and site == "resid_mid":
            stack.enter_context(model.hooked(gates))
        for layer in layers:
            stack.enter_context(at_site(model, layer, site, self._adding(layer)))
        if with_gates and site != "resid_mid":
            stack.enter_context(model.hooked(gates))

    def _adding(self, layer: int) -> Callable[[Tensor], Tensor]:
        def add(value: Tensor) -> Tensor:
            self.values[layer] = value.detach()
            self._zeros[layer] = torch.zeros_like(value, requires_grad=True)
            return value + self._zeros[layer]

        return add

    def _gate(self, layer: int) -> Callable[[Tensor], Tensor]:
        def gate(value: Tensor) -> Tensor:
            open_ = value + 0.0
            if open_.requires_grad:
                open_.register_hook(lambda grad: grad * 0 if self.dropped == layer else grad)
            return open_

        return gate

    def gradients(self, value: Tensor) -> dict[int, Tensor]:
        """The gradient of a number at every site."""
        found = torch.autograd.grad(
            value, list(self._zeros.values()), retain_graph=True, materialize_grads=True
        )
        return {layer: grad for layer, grad in zip(self._zeros, found, strict=True)}


def _measure(logits: Tensor, pair: EncodedPair, metric: str, clean: Tensor) -> Tensor:
    if metric == "logit_diff":
        return logits[pair.answer] - logits[pair.wrong]
    log_probs = logits.double().log_softmax(-1)
    if metric == "probability":
        return log_probs[pair.answer].exp()
    wanted = clean.double().log_softmax(-1)
    return (wanted.exp() * (wanted - log_probs)).sum()


def _add(
    found: np.ndarray,
    gradients: dict[int, Tensor],
    values: dict[int, Tensor],
    others: dict[int, Tensor],
    *,
    absolute: bool,
) -> None:
    heads = found.shape[-1]
    for layer, gradient in gradients.items():
        change = (others[layer] - values[layer]).double()
        products = (gradient.double() * change)[0].unflatten(-1, (heads, -1)).sum(-1)
        estimate = products.detach().cpu().numpy()
        found[layer] = found[layer] + np.abs(estimate) if absolute else estimate
