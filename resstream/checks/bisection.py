"""Which checkpoint of a run is the first that is broken?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from resstream.checks.report import CheckReport, Severity
from resstream.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Bisection:
    """What a search among checkpoints in order of time has found."""

    first_bad: str | None
    """The first checkpoint with findings; None if the last has none."""
    last_good: str | None
    """The one before it; None if the first has findings already."""
    checked: dict[str, str]
    """Verdict of each checkpoint that was checked, in the order of the checks."""
    report: CheckReport | None
    """What was found in the first bad one."""


def bisect(
    checkpoints: Sequence[str],
    check: Callable[[str], CheckReport],
    *,
    fail_on: Severity = "warning",
) -> Bisection:
    """Find where the verdict flips, in about log2 n checks.

    As every bisection it takes for granted that what is broken stays broken.

    Args:
        checkpoints: Names in order of time.
        check: Gives the report of one.
        fail_on: Severity from which a confirmed finding makes a checkpoint bad.

    Raises:
        ConfigError: There are fewer than two checkpoints.
    """
    if len(checkpoints) < 2:
        raise ConfigError(f"a bisection needs at least two checkpoints, got {len(checkpoints)}")
    reports: dict[int, CheckReport] = {}
    checked: dict[str, str] = {}

    def is_bad(index: int) -> bool:
        if index not in reports:
            reports[index] = check(checkpoints[index])
            checked[checkpoints[index]] = reports[index].verdict
        return bool(reports[index].confirmed(fail_on))

    good, bad = -1, len(checkpoints) - 1
    if not is_bad(bad):
        return Bisection(first_bad=None, last_good=checkpoints[bad], checked=checked, report=None)
    while bad - good > 1:
        middle = (good + bad) // 2
        if is_bad(middle):
            bad = middle
        else:
            good = middle
    return Bisection(
        first_bad=checkpoints[bad],
        last_good=checkpoints[good] if good >= 0 else None,
        checked=checked,
        report=reports[bad],
    )
