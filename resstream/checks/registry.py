"""All rules by code, and which of them a check uses."""

from collections.abc import Collection, Iterator
from importlib import import_module
from pkgutil import iter_modules

from resstream.checks import rules
from resstream.checks.rule import Rule
from resstream.errors import ConfigError


def _rules() -> Iterator[Rule]:
    """The rule of every file of the package, whose names begin with the codes."""
    for name in sorted(module.name for module in iter_modules(rules.__path__)):
        yield import_module(f"{rules.__name__}.{name}").RULE


RULES: dict[str, Rule] = {rule.code: rule for rule in _rules()}
"""Code to rule, in the order of the codes."""

CODES = tuple(RULES)


def active_codes(
    select: str | Collection[str] | None, ignore: str | Collection[str] | None
) -> frozenset[str]:
    """The codes that are used: those of `select` (all if None) less those of `ignore`.

    A string is one code, several with commas between them, or the beginning of codes: ``RS2`` are
    all of that group.

    Raises:
        ConfigError: No rule has such a code, or none is left.
    """
    chosen = CODES if select is None else _codes(select)
    left = frozenset(chosen) - frozenset(_codes(ignore or ()))
    if not left:
        raise ConfigError("no rule is left to check: select and ignore exclude each other")
    return left


def require_answerable(active: frozenset[str], answered: Collection[str], what: str) -> None:
    """Refuse to call a model healthy by rules that can't be asked.

    Raises:
        ConfigError: None of the active rules is among the answered ones.
    """
    if not active & frozenset(answered):
        raise ConfigError(f"none of the selected rules ({', '.join(sorted(active))}) {what}")


def rule_named(code: str) -> Rule:
    """The rule of that code, whatever its case.

    Raises:
        ConfigError: There is none.
    """
    found = RULES.get(code.upper())
    if found is None:
        raise ConfigError(_unknown(code))
    return found


def _codes(given: str | Collection[str]) -> list[str]:
    parts = given.split(",") if isinstance(given, str) else list(given)
    return [code for part in parts for code in _matching(part)]


def _matching(part: str) -> list[str]:
    start = part.strip().upper()
    found = [code for code in CODES if code == start or (len(start) > 2 and code.startswith(start))]
    if not found or not start.startswith("RS"):
        raise ConfigError(_unknown(part))
    return found


def _unknown(code: str) -> str:
    return f"unknown rule {code!r}; there are {', '.join(CODES)}"
