"""What do the small models of the experiments learn, and how are they trained?"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Int
from torch import Tensor, nn

LossOf = Callable[[], Tensor]


@dataclass(frozen=True, slots=True)
class Regression:
    """Inputs and the outputs of a random teacher, of unit variance: guessing the mean costs 1."""

    inputs: Float[Tensor, "row d_in"]
    targets: Float[Tensor, "row d_out"]


def regression(n_rows: int = 512, d_in: int = 16, d_out: int = 4) -> Regression:
    """A teacher with one hidden layer of 32 units, drawn from the random state."""
    inputs = torch.randn(n_rows, d_in)
    hidden = torch.tanh(inputs @ torch.randn(d_in, 32) / math.sqrt(d_in / 4))
    targets = hidden @ torch.randn(32, d_out)
    return Regression(inputs, (targets - targets.mean(0)) / targets.std(0))


def table_language(batch: int, pos: int, d_vocab: int) -> Int[Tensor, "batch pos"]:
    """Each token is looked up by the two before it in a random table: attention is needed."""
    table = torch.randint(d_vocab, (d_vocab, d_vocab))
    rows = torch.randint(d_vocab, (batch, pos))
    for at in range(2, pos):
        rows[:, at] = table[rows[:, at - 2], rows[:, at - 1]]
    return rows


def train(
    model: nn.Module,
    loss_of: LossOf,
    *,
    n_steps: int,
    rate: float = 1e-3,
    n_warmup: int = 0,
    clip: float | None = None,
) -> list[float]:
    """Losses of every step of Adam, and after the last; infinite from where it is not finite."""
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    losses: list[float] = []
    for step in range(n_steps):
        for group in optimiser.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / max(n_warmup, 1))
        loss = loss_of()
        losses.append(float(loss.detach()))
        if not math.isfinite(losses[-1]):
            return losses + [math.inf] * (n_steps - step)
        optimiser.zero_grad()
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimiser.step()
    with torch.no_grad():
        last = float(loss_of())
    return [*losses, last if math.isfinite(last) else math.inf]


def fit(model: nn.Module, task: Regression, *, n_steps: int, rate: float = 1e-3) -> float:
    """Mean squared error on the training rows after full-batch Adam."""

    def loss_of() -> Tensor:
        return F.mse_loss(model(task.inputs), task.targets)

    return train(model, loss_of, n_steps=n_steps, rate=rate)[-1]


@contextmanager
def watched(model: nn.Module, *ends: str) -> Iterator[dict[str, Tensor]]:
    """Values at the hook points whose names end so, with their gradients after a backward pass."""
    seen: dict[str, Tensor] = {}

    def watch(name: str) -> Callable[[nn.Module, object, Tensor], None]:
        def hook(module: nn.Module, given: object, value: Tensor) -> None:
            del module, given
            if value.requires_grad:
                value.retain_grad()
            seen[name] = value

        return hook

    handles = [
        module.register_forward_hook(watch(name))
        for name, module in model.named_modules()
        if name.endswith(ends)
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def gradient_norms(watched_values: dict[str, Tensor]) -> list[float]:
    """Norm of the gradient at each value that was watched, in the order of the run."""
    return [
        float(value.grad.norm()) if value.grad is not None else 0.0
        for value in watched_values.values()
    ]
