"""The oracle: each variant as a whole forward of the model with hooks.  Slow, and plain to see."""

from collections.abc import Sequence
from contextlib import ExitStack

import torch
from torch import Tensor

from resstream.stream.hooks import Hook
from resstream.stream.model import StreamModel
from resstream.sweep.patches import at_edit
from resstream.sweep.variants import Edit, Variant


def base_values(model: StreamModel, tokens: Tensor, sites: Sequence[str]) -> dict[str, Tensor]:
    """The values of an unchanged run at `sites`."""
    kept: dict[str, Tensor] = {}

    def keeping(site: str) -> Hook:
        return lambda value: kept.__setitem__(site, value.clone())

    with torch.no_grad(), ExitStack() as stack:
        for site in sites:
            stack.enter_context(at_edit(model, site, keeping(site)))
        model.forward(tokens)
    return kept


def run_by_hooks(model: StreamModel, tokens: Tensor, variant: Variant) -> Tensor:
    """Logits ``[batch, pos, d_vocab]`` of `variant`, by the model's own forward."""
    base = base_values(model, tokens, [edit.site for edit in variant.edits])

    def changing(edit: Edit) -> Hook:
        return lambda value: edit.change(value, base[edit.site])

    with torch.no_grad(), ExitStack() as stack:
        for edit in variant.edits:
            stack.enter_context(at_edit(model, edit.site, changing(edit)))
        return model.forward(tokens)
