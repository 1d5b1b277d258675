"""All rules by code, and which of them a check uses."""

from collections.abc import Collection

from resstream.checks.rule import Rule
from resstream.checks.rules import (
    rs000_too_short,
    rs001_not_finite,
    rs101_zero,
    rs102_faint,
    rs103_starved,
    rs104_constant,
    rs105_even_attention,
    rs106_sink_attention,
    rs107_rank,
    rs201_large,
    rs202_channel,
    rs203_harmful,
    rs204_erasing,
    rs301_exploding,
    rs302_stalled,
    rs303_lossy,
    rs401_zero_matrix,
    rs402_untrained,
    rs403_coarse,
    rs404_outlier,
    rs405_permuted,
    rs406_duplicate,
    rs407_swapped,
    rs501_narrow_stream,
    rs502_post_norm,
    rs503_large_init,
    rs601_differs,
    rs602_changed,
)
from resstream.errors import ConfigError

RULES: dict[str, Rule] = {
    module.RULE.code: module.RULE
    for module in (
        rs000_too_short,
        rs001_not_finite,
        rs101_zero,
        rs102_faint,
        rs103_starved,
        rs104_constant,
        rs105_even_attention,
        rs106_sink_attention,
        rs107_rank,
        rs201_large,
        rs202_channel,
        rs203_harmful,
        rs204_erasing,
        rs301_exploding,
        rs302_stalled,
        rs303_lossy,
        rs401_zero_matrix,
        rs402_untrained,
        rs403_coarse,
        rs404_outlier,
        rs405_permuted,
        rs406_duplicate,
        rs407_swapped,
        rs501_narrow_stream,
        rs502_post_norm,
        rs503_large_init,
        rs601_differs,
        rs602_changed,
    )
}
"""Code to rule, in the order of the codes."""

CODES = tuple(RULES)


def active_codes(
    select: str | Collection[str] | None, ignore: str | Collection[str] | None
) -> frozenset[str]:
    """The codes that are used: those of `select` (all if None) less those of `ignore`.

    A string is one code, several with commas between them, or the beginning of codes: ``RS2`` are
    all of that group.

    Raises:
        ConfigError: No rule has such a code.
    """
    chosen = CODES if select is None else _codes(select)
    return frozenset(chosen) - frozenset(_codes(ignore or ()))


def rule_named(code: str) -> Rule:
    """The rule of that code, whatever its case.

    Raises:
        ConfigError: There is none.
    """
    (found, *_) = _matching(code) if code.upper() in RULES else (None,)
    if found is None:
        raise ConfigError(_unknown(code))
    return RULES[found]


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
