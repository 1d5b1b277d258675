"""How large is the gradient of each block, before it is clipped and without the loss scale?

A norm is taken as soon as the last gradient of its group has been added up, while all of it is
still in the cache: one pass over the gradients a step.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from resstream.stream.model import StreamModel


def gradient_groups(model: StreamModel) -> list[list[nn.Parameter]]:
    """Parameters of each block, and a last group of all others; frozen ones are left out."""
    groups = [
        list(model.module.get_submodule(block.module).parameters()) for block in model.spec.blocks
    ]
    inside = {id(parameter) for group in groups for parameter in group}
    groups.append([p for p in model.module.parameters() if id(p) not in inside])
    return [[p for p in group if p.requires_grad] for group in groups]


class GradientNorms:
    """Euclidean norm of the gradient of each group of parameters.

    Args:
        groups: The groups; hooks are on their parameters until `close`.
    """

    def __init__(self, groups: Sequence[Sequence[nn.Parameter]]) -> None:
        self._groups = groups
        self._expected = [len(group) for group in groups]
        self._arrived = [0] * len(groups)
        self._norms: list[Tensor | None] = [None] * len(groups)
        self._handles: list[RemovableHandle] = [
            parameter.register_post_accumulate_grad_hook(partial(self._arrive, index))
            for index, group in enumerate(groups)
            for parameter in group
        ]

    def begin(self) -> None:
        """A new backward pass is to come."""
        for index, count in enumerate(self._arrived):
            # Experts that got no token have no gradient: expect as many as came the last time.
            self._expected[index] = count or self._expected[index]
        self._arrived = [0] * len(self._groups)

    def _arrive(self, index: int, parameter: Tensor) -> None:
        del parameter
        self._arrived[index] += 1
        if self._arrived[index] == self._expected[index]:
            self._norms[index] = self._norm(index)

    def _norm(self, index: int) -> Tensor:
        gradients = [p.grad for p in self._groups[index] if p.grad is not None]
        return torch.nn.utils.get_total_norm(gradients)

    def take(self, loss_scale: float = 1.0) -> list[float]:
        """The norms of this step, divided by `loss_scale`; 0 for a group without gradients."""
        late = [n != m for n, m in zip(self._arrived, self._expected, strict=True)]
        for index, is_late in enumerate(late):
            if is_late and self._arrived[index]:
                self._norms[index] = self._norm(index)
        norms: list[Any] = [0.0 if norm is None else norm for norm in self._norms]
        self._norms = [None] * len(self._groups)
        present = [norm for norm in norms if isinstance(norm, Tensor)]
        if not present:
            return [0.0] * len(norms)
        values = iter(torch.stack([norm.float() for norm in present]).tolist())
        return [next(values) / loss_scale if isinstance(n, Tensor) else 0.0 for n in norms]

    def close(self) -> None:
        """Take all hooks off."""
        for handle in self._handles:
            handle.remove()
