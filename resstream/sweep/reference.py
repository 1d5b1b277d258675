"""The oracle: each variant as a whole forward of the model with hooks.  Slow, and plain to see."""

from collections.abc import Sequence

import torch
from torch import Tensor

from resstream.stream.model import StreamModel
from resstream.sweep.variants import Edit, Variant


def base_values(model: StreamModel, tokens: Tensor, sites: Sequence[str]) -> dict[str, Tensor]:
    """The values of an unchanged run at `sites`."""
    kept: dict[str, Tensor] = {}

    def keeping(site: str):  # noqa: ANN202  (a hook)
        return lambda value: kept.__setitem__(site, value.clone())

    with torch.no_grad():
        model.run(tokens, {site: keeping(site) for site in sites})
    return kept


def run_by_hooks(model: StreamModel, tokens: Tensor, variant: Variant) -> Tensor:
    """Logits ``[batch, pos, d_vocab]`` of `variant`, by the model's own forward."""
    base = base_values(model, tokens, [edit.site for edit in variant.edits])

    def changing(edit: Edit):  # noqa: ANN202  (a hook)
        return lambda value: edit.change(value, base[edit.site])

    with torch.no_grad():
        return model.run(tokens, {edit.site: changing(edit) for edit in variant.edits})
