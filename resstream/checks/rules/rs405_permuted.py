"""RS405: attention heads whose values and outputs are in different orders."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from resstream.checks.experiments import Outcome, Trial
from resstream.checks.matching import correlation, value_reading
from resstream.checks.proof import gain_of, plain
from resstream.checks.repairs import ordered_heads
from resstream.checks.rule import Rule, Suspect
from resstream.checks.scene import Scene

LOW = 0.3
_MOST_HEADS = 4
_WORTH = 0.01

RULE = Rule(
    code="RS405",
    name="permuted heads",
    stage="pollution",
    severity="error",
    what="The heads in the output matrix stand in another order than those in the value matrix.",
    why="A conversion between layouts went wrong for this layer: every head writes with another "
    "head's matrix.",
    detection=f"Orders of the heads are tried on a few tokens: all of them for up to {_MOST_HEADS} "
    "heads. Where there are more, channels that carry large values should be read with large "
    f"columns: where the correlation of log norms over heads is below {LOW:g}, the best matching "
    "of values to columns is tried. The best must do better than taking the write away. Confirmed "
    "if the loss falls with it on the whole text.",
    traps="With grouped queries several heads share their values and can't be told apart so; "
    "correlations are low in some healthy layers. Without a gain in loss nothing is reported.",
    fix="put the heads back in order: convert the checkpoint again, or restore the layer",
    source="Kuhn (1955) for the matching.",
    example="resstream inject demo --fault permute_heads --layer 3 --write attn --out broken\n"
    "resstream check broken",
    suspects=lambda scene: _suspects(scene),
)


def head_match(scene: Scene, index: int, n_heads: int) -> Float[np.ndarray, "slot head"] | None:
    """Correlation of each slot's columns in the output matrix with each head's values."""
    own = scene.weights.find(scene.writes[index].output_matrix)
    if own is None or not own.is_matrix:
        return None
    values = value_reading(scene.weights, own)
    columns = own.row_norms if scene.writes[index].output_transposed else own.column_norms
    if values is None or len(columns) % n_heads:
        return None
    slots = columns.reshape(n_heads, -1)
    if len(values.row_norms) % slots.shape[1]:
        return None
    heads = values.row_norms.reshape(-1, slots.shape[1])
    if n_heads % len(heads):
        return None
    heads = heads.repeat(n_heads // len(heads), axis=0)
    return np.array([[correlation(slot, head) for head in heads] for slot in slots])


def _suspects(scene: Scene) -> list[Suspect]:
    n_heads = _n_heads(scene)
    if not scene.informative or n_heads is None:
        return []
    matches = {
        index: match
        for index, write in enumerate(scene.writes)
        if write.name == "attn"
        and (match := head_match(scene, index, n_heads)) is not None
        and np.isfinite(match).all()
    }
    doubtful = [
        index
        for index, match in matches.items()
        if n_heads <= _MOST_HEADS or match.diagonal().mean() < LOW
    ]
    found = [_search(scene, index, matches[index]) for index in doubtful]
    return [suspect for suspect in found if suspect is not None]


def _search(scene: Scene, index: int, match: Float[np.ndarray, "slot head"]) -> Suspect | None:
    """The order that helps most on a few tokens, if it helps."""
    write = scene.writes[index]
    trials = [
        Trial(
            write=write,
            label=f"heads in the order {list(order)}",
            weights=ordered_heads(scene.model, write, order),
        )
        for order in _orders(match)
    ]
    if not trials:
        return None
    effects = scene.lab.screen(trials)
    best = int(np.argmin(effects))
    # Any order takes the edge off a write that does harm: the right one beats having no write.
    if not effects[best] < min(0.0, scene.screened[index]) - _WORTH:
        return None

    def statement(outcome: Outcome) -> str:
        return f"{write.label} has its heads in another order than their values; {gain_of(outcome)}"

    return Suspect(
        code=RULE.code,
        index=index,
        trials=(trials[best],),
        evidence=(
            plain(
                "correlation of the heads' columns with their values (mean)",
                match.diagonal().mean(),
                LOW,
            ),
        ),
        statement=statement,
    )


def _orders(match: Float[np.ndarray, "slot head"]) -> list[Sequence[int]]:
    """Orders to try: slot i takes the columns that stand in slot ``order[i]`` now."""
    n_heads = len(match)
    straight = tuple(range(n_heads))
    if n_heads <= _MOST_HEADS:
        return [order for order in itertools.permutations(straight) if order != straight]
    from scipy.optimize import linear_sum_assignment

    slots, heads = linear_sum_assignment(-match)
    order = [0] * n_heads
    for slot, head in zip(slots, heads, strict=True):
        order[int(head)] = int(slot)
    return [order] if tuple(order) != straight else []


def _n_heads(scene: Scene) -> int | None:
    value = getattr(getattr(scene.model.module, "config", None), "num_attention_heads", None)
    return value if isinstance(value, int) and not math.isnan(value) and value > 1 else None
