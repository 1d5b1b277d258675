"""How is a file of pairs read?  As rows of named fields, from CSV, JSON or JSON lines."""

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from resstream.errors import TextError

_SUFFIXES = (".csv", ".json", ".jsonl")


def read_rows(path: Path) -> list[Any]:
    """The rows of a file, at least one.

    Raises:
        TextError: It can't be read, or is not what its name says.
    """
    if path.suffix not in _SUFFIXES:
        raise TextError(f"a file of pairs must end in {', '.join(_SUFFIXES)}, got {path}")
    try:
        text = path.read_text("utf-8-sig")  # Excel begins its files with a mark
    except OSError as err:
        raise TextError(f"cannot read {path}: {err.strerror or err}") from err
    except ValueError as err:
        raise TextError(f"{path} is not UTF-8: {err}") from err
    read = {".csv": _from_csv, ".jsonl": _from_lines, ".json": _from_json}[path.suffix]
    try:
        rows = read(text)
    except (ValueError, RecursionError, csv.Error) as err:
        raise TextError(f"{path} is no readable {path.suffix[1:]}: {err}") from err
    if not isinstance(rows, list) or not rows:
        raise TextError(f"{path} must hold a list of pairs, with at least one")
    return rows


def _from_csv(text: str) -> list[Any]:
    reader = csv.DictReader(io.StringIO(text, newline=""), skipinitialspace=False)
    names = [name.strip() for name in reader.fieldnames or ()]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"the column {twice[0]!r} stands there twice")
    reader.fieldnames = names
    rows = list(reader)
    for number, row in enumerate(rows, 1):
        # DictReader files what is too much under None, and None under what is missing.
        if None in row or None in row.values():
            raise ValueError(
                f"row {number} has not as many fields as there are columns ({', '.join(names)}); "
                "a text with a comma in it must stand in quotes"
            )
    return rows


def _from_lines(text: str) -> list[Any]:
    rows: list[Any] = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except ValueError as err:
                raise ValueError(f"line {number}: {err}") from err
    return rows


def _from_json(text: str) -> Any:
    rows = json.loads(text)
    if isinstance(rows, Mapping):
        return next((rows[key] for key in ("prompts", "pairs") if key in rows), [rows])
    return rows
