"""What is an experiment?  A claim, what is measured of it for one seed, and how that is judged.

Measuring and judging are apart: `Experiment.judge` sees nothing but numbers, so that a verdict can
be tested without a run.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from resstream.errors import ConfigError

Size = Literal["tiny", "quick", "full"]
"""How much is spent: ``tiny`` is for tests and proves nothing, ``quick`` is at most half a minute
on one core, ``full`` takes minutes."""
Verdict = Literal["holds", "does not hold here", "not testable at this size"]
Key = str | tuple[str, float]
"""Name of a quantity, or name and where it was measured (depth, learning rate, ...)."""


T = TypeVar("T")


def pick(size: Size, *, tiny: T, quick: T, full: T) -> T:
    """The setting that belongs to `size`."""
    return {"tiny": tiny, "quick": quick, "full": full}[size]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One quantity over the seeds."""

    quantity: str
    """What it is, with its unit."""
    at: float | None
    """Where it was measured: depth, learning rate, ..."""
    value: float
    """Median over the seeds."""
    low: float
    """Smallest over the seeds."""
    high: float
    """Largest over the seeds; with n seeds the range holds the true median in 1 - 2^(1-n)."""
    n_seeds: int
    """0: nothing is drawn, the number is exact."""


@dataclass(frozen=True, slots=True)
class Readings:
    """All quantities of an experiment, by name and place."""

    measured: tuple[Measured, ...]

    def at(self, quantity: str, at: float | None = None) -> Measured:
        """One quantity.

        Raises:
            KeyError: It was not measured.
        """
        for item in self.measured:
            if item.quantity == quantity and item.at == at:
                return item
        raise KeyError((quantity, at))

    def value(self, quantity: str, at: float | None = None) -> float:
        """Its median over the seeds."""
        return self.at(quantity, at).value

    def low(self, quantity: str, at: float | None = None) -> float:
        """Its smallest value over the seeds."""
        return self.at(quantity, at).low

    def high(self, quantity: str, at: float | None = None) -> float:
        """Its largest value over the seeds."""
        return self.at(quantity, at).high

    def places(self, quantity: str) -> list[float]:
        """Where a quantity was measured, in rising order."""
        return sorted(
            item.at for item in self.measured if item.quantity == quantity and item.at is not None
        )

    def line(self, quantity: str) -> list[float]:
        """Medians of a quantity, in the order of its places."""
        return [self.value(quantity, at) for at in self.places(quantity)]


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the numbers say of the claim."""

    verdict: Verdict
    statement: str
    """What was seen, in a sentence or two with its numbers."""


def judged(holds: bool, statement: str) -> Judgement:
    """The claim holds or it does not."""
    return Judgement("holds" if holds else "does not hold here", statement)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """How the numbers are drawn: lines over places, or one row a quantity without a place."""

    value_title: str
    """What is on the axis of the values, with its unit."""
    at_title: str | None = None
    """What the places are; None draws rows."""
    log_value: bool = False
    log_at: bool = False
    quantities: tuple[str, ...] = ()
    """What is drawn; empty: every quantity that has (lines) or has no place (rows)."""
    context: tuple[str, ...] = ()
    """Lines that are there to compare with: drawn grey."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A claim that can be tried.

    Raises:
        ConfigError: It names no claim, no source or no row of the mission.
    """

    name: str
    """How it is called for, such as ``gradient-identity``."""
    title: str
    """The question in a few words."""
    claim: str
    """What is said, as it is said."""
    source: str
    """Who says it, or the paper that it goes back to."""
    rows: tuple[int, ...]
    """Rows of docs/mission.md."""
    measure: Callable[[Size], Mapping[Key, float]]
    """Measures for one seed; the random state is set before."""
    judge: Callable[[Readings], Judgement]
    chart: Chart
    method: str
    """What was built and measured, in a sentence or two."""
    seeds: int = 3
    """How many seeds; 0: nothing is drawn, one run is all there is to know."""

    def __post_init__(self) -> None:
        for key in ("name", "title", "claim", "source", "method"):
            if not getattr(self, key):
                raise ConfigError(f"an experiment must have a {key}, got none for {self.name!r}")
        if not self.rows:
            raise ConfigError(f"experiment {self.name!r} must belong to a row of docs/mission.md")
