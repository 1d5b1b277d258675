"""The verb `rules`: which rules does `check` have?"""

from rich.console import Group, RenderableType
from rich.text import Text

from resstream_cli import options
from resstream_cli.outputs import Document, Outputs
from resstream_cli.tables import table

SCHEMA = "resstream.rules/1"


def rules(*, as_json: options.Json = False, out: options.Out = None) -> None:
    """List the rules of check, with their codes."""
    outputs = Outputs(as_json=as_json, out=out)
    from resstream.checks.registry import RULES

    rows = [
        {
            "code": rule.code,
            "name": rule.name,
            "severity": rule.severity,
            "stage": rule.stage,
            "what": rule.what,
        }
        for rule in RULES.values()
    ]
    outputs.emit(Document({"schema": SCHEMA, "rules": rows}), lambda: _shown(rows))


def _shown(rows: list[dict[str, str]]) -> RenderableType:
    headings = ("code", "severity", "name", "what")
    listed = table(headings, [tuple(row[name] for name in headings) for row in rows])
    return Group(listed, Text("resstream explain CODE says how each is detected."))
