"""What was run already: one JSON object a line, found by the name of what it is about."""

import json
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def read_rows(path: Path) -> dict[str, Row]:
    """The rows of a file by name; none if it does not exist yet."""
    if not path.exists():
        return {}
    return {row["name"]: row for row in map(json.loads, path.read_text("utf-8").splitlines())}
