"""A variant is the base run with one or more sites changed, the same up to the first of them."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

Change = Callable[[Tensor, Tensor], Tensor]
"""From the value at a site and the base run's value there to what takes its place."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One site and what is done to its value."""

    site: str
    change: Change
    fixed: bool = False
    """True if what takes the value's place does not depend on it: only on the base run."""

    @property
    def layer(self) -> int:
        """The block that the site belongs to."""
        return int(self.site.split(".")[1])


@dataclass(frozen=True, slots=True)
class Variant:
    """One changed run."""

    label: str
    edits: tuple[Edit, ...]

    @property
    def first_layer(self) -> int:
        """The first block in which anything differs from the base run."""
        return min(edit.layer for edit in self.edits)

    @property
    def last_layer(self) -> int:
        """The last block in which anything is edited."""
        return max(edit.layer for edit in self.edits)

    def edits_in(self, layer: int) -> tuple[Edit, ...]:
        """The edits of one block."""
        return tuple(edit for edit in self.edits if edit.layer == layer)


def zero(value: Tensor, base: Tensor) -> Tensor:
    """Nothing is written."""
    del base
    return value.new_zeros(value.shape)


def scale(factor: float) -> Change:
    """The write, `factor` times as large."""
    return lambda value, base: value * factor


def replace(constant: Tensor) -> Change:
    """A constant write: ``[d_model]`` or ``[pos, d_model]``, the same for every sequence."""
    return lambda value, base: constant.to(value).expand_as(value)


def resample(order: Tensor) -> Change:
    """The base run's write of another sequence of the batch: row ``order[i]`` for row ``i``."""
    return lambda value, base: base[order]


def within(channels: slice, change: Change) -> Change:
    """The same change of some channels alone, such as those of one head."""

    def run(value: Tensor, base: Tensor) -> Tensor:
        changed = value.clone()
        changed[..., channels] = change(value[..., channels], base[..., channels])
        return changed

    return run
