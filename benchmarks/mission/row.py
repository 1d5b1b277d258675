"""What is one row of the mission?"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A system or a claim, with the places in this repository that make and test it."""

    number: int
    title: str
    formula: str
    """What it says, as it is right."""
    made_by: tuple[str, ...] = ()
    """``module:name`` below `resstream`, without the package's own name."""
    tests: tuple[str, ...] = ()
    """``path::function`` below `tests`."""
    why: str = ""
    """Why a row has no class, or no experiment."""
