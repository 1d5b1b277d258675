"""Which keys and values may a config have?  Checks of single fields; sum types to and from JSON.

A sum type is a tuple of frozen dataclasses, each with a `kind`.  As JSON it is the kind alone
(``"plain"``) or a mapping (``{"kind": "layer_scale", "init": 1e-5}``).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar, Protocol, TypeVar

from resstream.errors import ConfigError


class Variant(Protocol):
    """One member of a sum type."""

    kind: ClassVar[str]


VariantT = TypeVar("VariantT", bound=Variant)


def check_whole(key: str, value: object, *, at_least: int) -> None:
    """Refuse what is not a whole number of at least `at_least`.

    Raises:
        ConfigError: Names the key, the value and what is allowed.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ConfigError(f"{key} must be a whole number of at least {at_least}, got {value!r}")


def check_number(
    key: str,
    value: Any,
    *,
    at_least: float = -math.inf,
    below: float = math.inf,
    at_most: float = math.inf,
) -> None:
    """Refuse what is not a finite number in ``at_least <= value < below``, at most `at_most`.

    Raises:
        ConfigError: Names the key, the value and what is allowed.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and math.isfinite(value) and at_least <= value < below and value <= at_most):
        bounds = [f"at least {at_least:g}" if at_least > -math.inf else "any size"]
        bounds += [f"below {below:g}"] if below < math.inf else []
        bounds += [f"at most {at_most:g}"] if at_most < math.inf else []
        raise ConfigError(f"{key} must be a finite number ({' and '.join(bounds)}), got {value!r}")


def check_choice(key: str, value: object, allowed: Sequence[object]) -> None:
    """Refuse what is not one of `allowed`.

    Raises:
        ConfigError: Names the key, the value and what is allowed.
    """
    if not any(
        value is choice or (value == choice and type(value) is type(choice)) for choice in allowed
    ):
        choices = ", ".join(repr(choice) for choice in allowed)
        raise ConfigError(f"{key} must be one of {choices}, got {value!r}")


def check_keys(what: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse keys that `what` does not have.

    Raises:
        ConfigError: Names the unknown keys and the known ones.
    """
    unknown = sorted(set(given) - set(known))
    if unknown:
        listed = ", ".join(known) or "none"
        raise ConfigError(f"{what} has unknown keys {unknown}; known keys of {what}: {listed}")


def parse_variant(key: str, value: object, variants: Sequence[type[VariantT]]) -> VariantT:
    """Make the member of a sum type that `value` describes; a finished member passes through.

    Args:
        key: Name of the field, for messages.
        value: A member, its kind, or a mapping with `kind` and the member's own fields.
        variants: All members of the sum type.

    Raises:
        ConfigError: The kind is unknown, a key is unknown, or a value is not allowed.
    """
    if isinstance(value, tuple(variants)):
        return value
    if isinstance(value, str):
        value = {"kind": value}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{key} must be a kind or a mapping with a kind, got {value!r}")
    members = {variant.kind: variant for variant in variants}
    kind = value.get("kind")
    if kind not in members:
        raise ConfigError(f"{key}.kind must be one of {', '.join(sorted(members))}, got {kind!r}")
    given = {name: item for name, item in value.items() if name != "kind"}
    member = members[kind]
    check_keys(f"{key} {kind!r}", given, [field.name for field in fields(member)])  # type: ignore[arg-type]
    return member(**given)


def to_plain(value: object) -> Any:
    """Turn a config value into what JSON can hold; `parse_variant` reads it back."""
    if not is_dataclass(value) or isinstance(value, type):
        return value
    plain = {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    kind = getattr(value, "kind", None)
    return plain if kind is None else {"kind": kind, **plain}
