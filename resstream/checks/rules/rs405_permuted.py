"""RS405: attention heads whose values and outputs are in different orders."""

import math

import numpy as np
from jaxtyping import Float

from resstream.checks.experiments import Outcome, Trial
from resstream.checks.matching import correlation, value_reading
from resstream.checks.proof import gain_of, plain
from resstream.checks.repairs import ordered_heads
from resstream.checks.rule import Rule, Suspect
from resstream.checks.scene import Scene

BETTER = 0.03

RULE = Rule(
    code="RS405",
    name="permuted heads",
    stage="pollution",
    severity="error",
    what="The heads in the output matrix stand in another order than those in the value matrix.",
    why="A conversion between layouts went wrong for this layer: every head writes with another "
    "head's matrix.",
    detection="Channels that carry large values are read with large columns: the norms of the "
    "rows of each head's values go with those of its columns. The order of heads that matches "
    f"best is tried where its mean correlation is {BETTER:g} above that of the order in place. "
    "Confirmed if the loss falls with it.",
    traps="With grouped queries several heads share their values, and the norms can't tell them "
    "apart; without a gain in loss nothing is said. The loss alone is no proof: on foreign text, "
    "or behind a damaged layer, many a wrong order helps, since it takes the edge off the write.",
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
    found = [
        _suspect(scene, index, n_heads)
        for index, write in enumerate(scene.writes)
        if write.name == "attn"
    ]
    return [suspect for suspect in found if suspect is not None]


def _suspect(scene: Scene, index: int, n_heads: int) -> Suspect | None:
    """The order that fits the values best, if it fits better than the one that is there."""
    match = head_match(scene, index, n_heads)
    if match is None or not np.isfinite(match).all():
        return None
    order = best_order(match)
    now, then = float(match.diagonal().mean()), float(match[order, range(n_heads)].mean())
    if not then > now + BETTER:
        return None
    write = scene.writes[index]
    trial = Trial(
        write=write,
        label=f"heads in the order {list(order)}",
        weights=ordered_heads(scene.model, write, order),
    )

    def statement(outcome: Outcome) -> str:
        return f"{write.label} has its heads in another order than their values; {gain_of(outcome)}"

    name = "correlation of the heads' columns with their values"
    return Suspect(
        code=RULE.code,
        index=index,
        trials=(trial,),
        evidence=(plain(f"{name} (mean)", now), plain(f"{name} in the better order", then)),
        statement=statement,
    )


def best_order(match: Float[np.ndarray, "slot head"]) -> tuple[int, ...]:
    """The order that fits best: slot i gets the columns that stand in slot ``order[i]`` now."""
    from scipy.optimize import linear_sum_assignment

    return tuple(int(slot) for slot in linear_sum_assignment(-match.T)[1])


def _n_heads(scene: Scene) -> int | None:
    value = getattr(getattr(scene.model.module, "config", None), "num_attention_heads", None)
    return value if isinstance(value, int) and not math.isnan(value) and value > 1 else None
