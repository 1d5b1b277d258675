"""What patching gave: effects by layer and position, with intervals over pairs, and normalised."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from jaxtyping import Float

from resstream.analysis.intervals import bootstrap_interval, few
from resstream.analysis.pairs import EncodedPair
from resstream.analysis.vocabulary import token_texts
from resstream.stream.model import StreamModel
from resstream.stream.provenance import provenance_of
from resstream.stream.result import Result
from resstream.sweep.activations import fast_names
from resstream.sweep.grid import Grid, GridRun, PairPatch
from resstream.sweep.metrics import Direction

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

LEAST_DIFFERENCE: dict[str, float] = {
    "logit_diff": 0.5, "probability": 0.05, "rank": 1.0, "kl": 0.05,
}  # fmt: skip
"""Where clean and corrupted run differ by less than this, there is no normalised effect."""
_ELSEWHERE = "…"


@dataclass(frozen=True, slots=True, kw_only=True)
class Screening:
    """How well the estimate foretold the cells that were run."""

    k: int
    """Cells that were run, the most promising ones."""
    pearson: float
    """Correlation of estimate and exact effect over them; NaN for fewer than three."""
    largest_difference: float
    """Between estimate and exact effect, in the metric's unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairEnds:
    """The two unchanged runs of a pair."""

    clean: float
    corrupted: float
    n_tokens: int
    normalised: bool
    """True if the pair counts for the normalised effect: its ends differ by enough."""
    clean_prompt: str = ""
    corrupted_prompt: str = ""
    answer: str = ""
    wrong: str = ""


@dataclass(frozen=True, kw_only=True)
class PatchResult(Result):
    """Effects of patching, by layer and position (and head, for `head_out`)."""

    schema: ClassVar[str] = "resstream.patch/1"

    model: str
    site: str
    metric: str
    direction: str
    tokens: tuple[str, ...]
    """The clean prompt's tokens; an ellipsis where several pairs have different ones."""
    corrupted_tokens: tuple[str, ...]
    clean: float
    """Metric of the clean run, mean over pairs."""
    corrupted: float
    effects: Float[np.ndarray, "layer pos *head"]
    """Metric with the cell patched less that of the run patched into, mean over pairs; NaN where
    the architecture has no such site, or where a screened sweep did not run."""
    ci_low: Float[np.ndarray, "layer pos *head"] | None
    """95 % bootstrap interval of the effect over pairs; None for a single pair."""
    ci_high: Float[np.ndarray, "layer pos *head"] | None
    normalised: Float[np.ndarray, "layer pos *head"] | None
    """``(patched - corrupted) / (clean - corrupted)``, ratio of the means over pairs."""
    normalised_refused: str | None
    """Why there is no normalised effect, in a sentence."""
    pairs: tuple[PairEnds, ...]
    computed: int
    """Cells that were run."""
    skipped: int
    """Cells that were answered without running, because they can't change anything."""
    layer_tokens: int
    """Positions that went through a block, unchanged runs included."""
    how: str
    """Whether suffixes were run alone, or why whole sequences were; and which activations were
    computed by another kernel than the model's own, to the same numbers but for rounding."""
    warnings: tuple[str, ...]
    estimates: Float[np.ndarray, "layer pos *head"] | None = None
    """First-order estimate of every effect, of a screened sweep."""
    screening: Screening | None = None

    def largest(self, count: int) -> list[tuple[int, int, int | None]]:
        """The cells with the largest effects: layer, position, and head where there is one."""
        sizes = np.nan_to_num(np.abs(self.effects), nan=-1.0)
        order = np.argsort(-sizes, axis=None, kind="stable")[:count]
        places = [np.unravel_index(at, sizes.shape) for at in order if sizes.flat[at] >= 0]
        return [(int(p[0]), int(p[1]), int(p[2]) if len(p) > 2 else None) for p in places]

    def to_dataframe(self) -> "pd.DataFrame":
        """One row a cell; effects in the metric's unit."""
        import pandas as pd

        places = np.argwhere(np.ones_like(self.effects))
        columns = ["layer", "position", "head"][: self.effects.ndim]
        table = pd.DataFrame(places, columns=columns)
        table.insert(2, "token", [self.tokens[row[1]] for row in places])
        table["site"] = self.site
        index = tuple(places.T)
        named = {
            f"effect_{self.metric}": self.effects,
            "ci_low": self.ci_low,
            "ci_high": self.ci_high,
            "normalised": self.normalised,
        }
        for name, values in named.items():
            table[name] = np.nan if values is None else values[index]
        return table

    def plot(self) -> "go.Figure":
        """Heatmap over layers and positions; heads are summed over positions."""
        return draw_cells(
            self.effects,
            self.tokens,
            value_title=f"effect on {self.metric} (blue: up)",
            diverging=True,
            title=f"{self.direction} {self.site}",
        )


def pairs_hash(encoded: Sequence[EncodedPair]) -> str:
    """SHA-256 of all token ids and answers, first 16 hex digits."""
    digest = hashlib.sha256()
    for pair in encoded:
        for ids in (pair.clean, pair.corrupted):
            digest.update(ids.numpy().astype("<i8").tobytes() + b"|")
        digest.update(f"{pair.answer},{pair.wrong};".encode())
        if pair.noise is not None:
            digest.update(pair.noise.double().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def make_result(
    grid: Grid,
    encoded: Sequence[EncodedPair],
    run: GridRun,
    *,
    seed: int,
    estimates: Float[np.ndarray, "layer pos *head"] | None = None,
) -> PatchResult:
    """Put the pairs of a run together: means, intervals, normalised effects."""
    model = grid.model
    effects = stacked([_effects(pair, grid.direction) for pair in run.pairs])
    low, high = _intervals(effects, seed)
    counted = [_counts(pair, grid.metric) for pair in run.pairs]
    normalised, refused = _normalised(run.pairs, counted, grid.metric)
    drop_head = grid.n_heads is None

    def shaped(values: np.ndarray | None) -> np.ndarray | None:
        return values[..., 0] if drop_head and values is not None else values

    mean = shaped(effects.mean(0))
    assert mean is not None, "there is at least one pair"
    text = f"{len(encoded)} prompt pair{'s' * (len(encoded) > 1)}"
    return PatchResult(
        provenance=provenance_of(model, text, pairs_hash(encoded), seed=seed),
        model=model.name,
        site=grid.site,
        metric=grid.metric,
        direction=grid.direction,
        tokens=shown_tokens(model, [pair.clean.tolist() for pair in encoded]),
        corrupted_tokens=shown_tokens(model, [pair.corrupted.tolist() for pair in encoded]),
        clean=float(np.mean([pair.clean for pair in run.pairs])),
        corrupted=float(np.mean([pair.corrupted for pair in run.pairs])),
        effects=mean,
        ci_low=shaped(low),
        ci_high=shaped(high),
        normalised=shaped(normalised),
        normalised_refused=refused,
        pairs=tuple(
            PairEnds(
                clean=pair.clean,
                corrupted=pair.corrupted,
                n_tokens=one.length,
                normalised=counts,
                clean_prompt="".join(token_texts(model, one.clean.tolist())),
                corrupted_prompt="".join(token_texts(model, one.corrupted.tolist())),
                answer=_named(model, one.answer),
                wrong=_named(model, one.wrong),
            )
            for pair, one, counts in zip(run.pairs, encoded, counted, strict=True)
        ),
        computed=run.computed,
        skipped=run.skipped,
        layer_tokens=run.layer_tokens,
        how=_how(grid),
        warnings=(*(text for pair in encoded for text in pair.warnings), *_warnings(encoded)),
        estimates=estimates,
        screening=None if estimates is None else _screening(estimates, mean),
    )


def _named(model: StreamModel, token: int) -> str:
    return "" if token < 0 else token_texts(model, [token])[0]


def _how(grid: Grid) -> str:
    proof, model = grid.proof, grid.model
    how = "suffixes behind the base run" if proof.proved else f"whole sequences: {proof.reason}"
    fast = fast_names(model.module, model.dtype)
    return f"{how}; {', '.join(fast)} as one kernel" if fast else how


def _screening(estimates: np.ndarray, exact: np.ndarray) -> Screening:
    run = np.isfinite(exact)
    one, two = estimates[run], exact[run]
    varies = len(one) > 2 and np.ptp(one) > 0 and np.ptp(two) > 0
    return Screening(
        k=int(run.sum()),
        pearson=float(np.corrcoef(one, two)[0, 1]) if varies else float("nan"),
        largest_difference=float(np.abs(one - two).max(initial=0.0)),
    )


def _effects(pair: PairPatch, direction: Direction) -> np.ndarray:
    return pair.patched - (pair.corrupted if direction == "denoising" else pair.clean)


def stacked(parts: Sequence[np.ndarray]) -> Float[np.ndarray, "pair layer pos head"]:
    """Pairs of several lengths stand with their last positions, where the answer is, in line."""
    longest = max(part.shape[1] for part in parts)
    widths = [((0, 0), (longest - part.shape[1], 0), (0, 0)) for part in parts]
    padded = [
        np.pad(part, width, constant_values=0.0) for part, width in zip(parts, widths, strict=True)
    ]
    return np.stack(padded)


def _intervals(effects: np.ndarray, seed: int) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Percentile bootstrap over pairs of every cell at once."""
    count = len(effects)
    if count < 2:
        return None, None
    if effects[0].size <= 64:
        flat = effects.reshape(count, -1)
        ends = [bootstrap_interval(column, np.ones(count), seed=seed) for column in flat.T]
        both = np.array(ends).T.reshape(2, *effects.shape[1:])
        return both[0], both[1]
    draws = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=2000)
    weights = draws / count
    flat = effects.reshape(count, -1)
    low, high = np.empty(flat.shape[1]), np.empty(flat.shape[1])
    for start in range(0, flat.shape[1], 512):
        part = slice(start, start + 512)
        low[part], high[part] = np.quantile(weights @ flat[:, part], (0.025, 0.975), axis=0)
    return low.reshape(effects.shape[1:]), high.reshape(effects.shape[1:])


def _counts(pair: PairPatch, metric: str) -> bool:
    return abs(pair.clean - pair.corrupted) >= LEAST_DIFFERENCE[metric]


def _normalised(
    pairs: Sequence[PairPatch], counted: Sequence[bool], metric: str
) -> tuple[np.ndarray | None, str | None]:
    kept = [pair for pair, counts in zip(pairs, counted, strict=True) if counts]
    if not kept:
        worst = max(abs(pair.clean - pair.corrupted) for pair in pairs)
        return None, (
            f"clean and corrupted must differ by at least {LEAST_DIFFERENCE[metric]} in {metric}, "
            f"got {worst:.3g} at most; choose pairs that the model tells apart"
        )
    spans = np.array([pair.clean - pair.corrupted for pair in kept])
    error = spans.std(ddof=1) / np.sqrt(len(spans)) if len(spans) > 1 else 0.0
    if abs(spans.mean()) < 3 * error:
        return None, (
            f"clean and corrupted must differ by at least 3 standard errors over pairs, got "
            f"{spans.mean():.3g} with {error:.3g}; use more pairs, or pairs that agree"
        )
    parts = stacked([pair.patched - pair.corrupted for pair in kept])
    return parts.mean(0) / spans.mean(), None


def shown_tokens(model: StreamModel, rows: Sequence[Sequence[int]]) -> tuple[str, ...]:
    """The tokens of several prompts, last in line; an ellipsis where they differ."""
    longest = max(map(len, rows))
    texts = [("",) * (longest - len(row)) + token_texts(model, row) for row in rows]
    return tuple(
        column[0] if len(set(column)) == 1 else _ELSEWHERE for column in zip(*texts, strict=True)
    )


def _warnings(encoded: Sequence[EncodedPair]) -> list[str]:
    found: list[str] = []
    same = [
        number for number, pair in enumerate(encoded, 1) if pair.first_difference == pair.length
    ]
    if same:
        shown = ", ".join(map(str, same[:5]))
        found.append(f"clean and corrupted are the same in pair {shown}: no effects")
    found += few(len(encoded), "pairs")
    if len({pair.length for pair in encoded}) > 1:
        found.append("pairs have different lengths; positions are counted from the end")
    return found


def draw_cells(
    values: np.ndarray,
    tokens: tuple[str, ...],
    *,
    value_title: str,
    diverging: bool,
    title: str,
) -> "go.Figure":
    """Heatmap of cells ``[layer, position]``; cells with heads are summed over positions."""
    from resstream.figures.heatmap import layer_head_heatmap, layer_position_heatmap

    if values.ndim == 3:
        summed = np.where(np.isfinite(values).any(1), np.nansum(values, axis=1), np.nan)
        return layer_head_heatmap(summed, value_title=value_title, title=title)
    return layer_position_heatmap(
        values, tokens, value_title=value_title, diverging=diverging, title=title
    )
