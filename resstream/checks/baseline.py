"""Which findings has a project accepted?  A file that keeps them out of the verdict."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from resstream.checks.checking import verdict_of
from resstream.checks.keys import Key, key_of
from resstream.checks.report import CheckReport, Finding
from resstream.errors import ConfigError
from resstream.stream.files import write_file

SCHEMA = "resstream.baseline/1"


def write_baseline(path: str | Path, report: CheckReport) -> int:
    """Accept all findings of `report`; returns how many there are.

    Raises:
        OutputError: The file can't be written.
    """
    findings = [*report.findings, *report.accepted]
    rows = [
        {"code": f.code, "layer": f.layer, "write": f.write, "statement": f.statement}
        for f in findings
    ]
    plain = {"schema": SCHEMA, "model": report.model, "accepted": rows}
    with write_file(path) as part:
        part.write_text(json.dumps(plain, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return len(rows)


def read_baseline(path: str | Path) -> frozenset[Key]:
    """The findings that are accepted.

    Raises:
        ConfigError: There is no such file, or it is no baseline.
    """
    try:
        plain: Any = json.loads(Path(path).read_text("utf-8"))
        if plain["schema"] != SCHEMA:
            raise ValueError(f"schema must be {SCHEMA!r}, got {plain['schema']!r}")
        return frozenset((row["code"], row["layer"], row["write"]) for row in plain["accepted"])
    except OSError as err:
        raise ConfigError(f"cannot read the baseline {path}: {err.strerror or err}") from err
    except ValueError as err:
        raise ConfigError(f"{path} is no baseline (as --write-baseline makes it): {err}") from err
    except (KeyError, TypeError) as err:
        raise ConfigError(
            f"{path} is no baseline: it must hold a schema and a list of accepted findings with "
            "code, layer and write, as --write-baseline makes it"
        ) from err


def accept(report: CheckReport, accepted: frozenset[Key]) -> CheckReport:
    """The report with accepted findings set aside; the verdict is about the others."""
    left = _split(report.findings, accepted, keep=False)
    aside = _split(report.findings, accepted, keep=True)
    return replace(report, findings=left, accepted=aside, verdict=verdict_of(left))


def _split(
    findings: Sequence[Finding], accepted: frozenset[Key], *, keep: bool
) -> tuple[Finding, ...]:
    return tuple(finding for finding in findings if (key_of(finding) in accepted) is keep)
