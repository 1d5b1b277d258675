"""The verb `explain`: what does a rule mean, and how is it told from a false alarm?"""

from typing import Annotated

import typer
from rich.markdown import Markdown

from resstream_cli import options
from resstream_cli.outputs import Document, Outputs

SCHEMA = "resstream.explain/1"
_FIELDS = (
    "code", "name", "stage", "severity", "what", "why", "detection", "traps", "fix", "source",
    "example",
)  # fmt: skip


def explain(
    code: Annotated[str, typer.Argument(metavar="CODE", help="Such as RS102.", show_default=False)],
    *,
    as_json: options.Json = False,
    out: options.Out = None,
) -> None:
    """Explain a rule: what, why it matters, how it is detected, traps, fix, source."""
    outputs = Outputs(as_json=as_json, out=out)
    from resstream.checks.explaining import explain as text_of
    from resstream.checks.registry import rule_named

    rule = rule_named(code)
    plain = {"schema": SCHEMA, **{name: getattr(rule, name) for name in _FIELDS}}
    outputs.emit(Document(plain), lambda: Markdown(text_of(rule)))
