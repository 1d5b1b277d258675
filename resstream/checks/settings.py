"""Which settings of a check does a project have?  ``[tool.resstream.check]`` in pyproject.toml."""

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from resstream.checks.registry import active_codes
from resstream.checks.report import SEVERITIES, Severity
from resstream.errors import ConfigError

TABLE = "tool.resstream.check"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a project sets; None where it says nothing."""

    select: tuple[str, ...] | None = None
    """Codes (or beginnings of codes) of the rules that are used."""
    ignore: tuple[str, ...] | None = None
    fail_on: Severity | None = None
    baseline: Path | None = None
    """File of accepted findings, relative to pyproject.toml."""


def read_settings(start: Path | None = None) -> Settings:
    """Settings of the nearest pyproject.toml from `start` (the working directory) upwards.

    Raises:
        ConfigError: The file is no TOML, or a setting is unknown or not allowed.
    """
    folder = (start or Path.cwd()).absolute()
    for place in (folder, *folder.parents):
        file = place / "pyproject.toml"
        if file.is_file():
            return _read(file)
    return Settings()


def _read(file: Path) -> Settings:
    try:
        plain = tomllib.loads(file.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as err:
        raise ConfigError(f"cannot read {file}: {err}") from err
    table: Any = plain
    for name in TABLE.split("."):
        table = table.get(name, {}) if isinstance(table, dict) else {}
    if not isinstance(table, dict):
        raise ConfigError(f"{file}: [{TABLE}] must be a table of settings, got {table!r}")
    known = {field.name.replace("_", "-"): field.name for field in fields(Settings)}
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise ConfigError(
            f"{file}: [{TABLE}] has no setting {unknown[0]!r}; there are {', '.join(known)}"
        )
    return _checked(file, {known[name]: value for name, value in table.items()})


def _checked(file: Path, values: dict[str, Any]) -> Settings:
    for name in ("select", "ignore"):
        codes = values.get(name)
        if codes is None:
            continue
        if not isinstance(codes, list) or not all(isinstance(code, str) for code in codes):
            raise ConfigError(f"{file}: {name} must be a list of codes, got {codes!r}")
        try:
            active_codes(codes, None)
        except ConfigError as err:
            raise ConfigError(f"{file}: {name}: {err}") from err
        values[name] = tuple(codes)
    if values.get("fail_on") not in (None, *SEVERITIES):
        raise ConfigError(
            f"{file}: fail-on must be one of {', '.join(SEVERITIES)}, got {values['fail_on']!r}"
        )
    if "baseline" in values:
        values["baseline"] = file.parent / str(values["baseline"])
    return Settings(**values)
