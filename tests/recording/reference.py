"""The recorder's numbers once more, slowly and plainly: one token at a time, in float64."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resstream.stream.model import StreamModel

Values = dict[str, Tensor]


def token_metrics(write: Any, stream: Any, branch: Any, final: Any) -> dict[str, float]:
    """Every metric of one write of one token, from four vectors."""
    w, x, b, z = (np.asarray(vector, dtype=np.float64) for vector in (write, stream, branch, final))

    def norm(vector: np.ndarray) -> float:
        return math.sqrt(math.fsum(vector * vector))

    def dot(one: np.ndarray, other: np.ndarray) -> float:
        return math.fsum(one * other)

    def over(top: float, bottom: float) -> float:
        if bottom == 0.0:
            return math.nan if top == 0.0 else math.inf
        return top / bottom

    along = over(dot(w, x), norm(x))
    across = w - along * over(1.0, norm(x)) * x if norm(x) else w * math.nan
    return {
        "branch_norm": norm(b),
        "write_norm": norm(w),
        "relative_norm": over(norm(w), norm(x)),
        "cosine": over(dot(w, x), norm(w) * norm(x)) if norm(w) * norm(x) else math.nan,
        "parallel": along,
        "orthogonal": norm(across),
        "erase_fraction": over(max(0.0, -dot(w, x)), dot(x, x)) if norm(x) else math.nan,
        "channel_share": over(max(w * w), dot(w, w)),
        "survival": over(dot(w, z), dot(w, w)) if norm(w) else math.nan,
        "survival_cosine": over(dot(w, z), norm(w) * norm(z)) if norm(w) * norm(z) else math.nan,
    }


def run_and_keep(model: StreamModel, inputs: Tensor) -> Values:
    """Every site of one plain forward, copied as it passes."""
    kept: Values = {}

    def keeping(site: str):
        return lambda value: kept.__setitem__(site, value.detach().clone())

    with torch.no_grad():
        model.run(inputs, {site: keeping(site) for site in model.sites})
    return kept


def stream_before(model: StreamModel, kept: Values, index: int) -> Tensor:
    """The stream that a write is added to, found from the values alone."""
    write = model.spec.writes[index]
    block = model.spec.blocks[write.layer]
    pre = kept[f"blocks.{write.layer}.hook_resid_pre"]
    place = block.writes.index(write)
    if place == 0 or block.parallel:
        return pre
    return kept[f"blocks.{write.layer}.hook_resid_mid"]


def slow_metrics(model: StreamModel, inputs: Tensor) -> dict[str, np.ndarray]:
    """``metric -> [write, batch, pos]``."""
    kept = run_and_keep(model, inputs)
    final = kept[f"blocks.{model.spec.n_layers - 1}.hook_resid_post"]
    batch, pos = final.shape[:2]
    found: dict[str, np.ndarray] = {}
    for index, spec in enumerate(model.spec.writes):
        write, stream = kept[spec.site], stream_before(model, kept, index)
        branch = kept[spec.site.replace("_out", "_branch")].reshape(batch, pos, -1)
        for row, token in np.ndindex(batch, pos):
            one = token_metrics(
                write[row, token], stream[row, token], branch[row, token], final[row, token]
            )
            for name, value in one.items():
                room = found.setdefault(
                    name, np.full((len(model.spec.writes), batch, pos), math.nan)
                )
                room[index, row, token] = value
    return found
