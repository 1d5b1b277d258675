"""The verb `bisect`: which checkpoint of a run is the first with findings?"""

from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Group, RenderableType
from rich.text import Text

import resstream as rs
from resstream_cli import options
from resstream_cli.inputs import open_model, open_text
from resstream_cli.outputs import Document, Outputs
from resstream_cli.progress import working
from resstream_cli.tables import printable, table

if TYPE_CHECKING:
    from resstream import CheckReport
    from resstream.checks.bisection import Bisection

SCHEMA = "resstream.bisect/1"
FOUND = 1


def bisect(
    checkpoints: Annotated[
        list[str],
        typer.Argument(
            metavar="CHECKPOINT...", help="Two or more, in order of time.", show_default=False
        ),
    ],
    *,
    fail_on: Annotated[
        Literal["info", "warning", "error"],
        typer.Option("--fail-on", help="Severity from which a checkpoint is bad."),
    ] = "warning",
    text: options.Text = None,
    sequences: options.Sequences = 16,
    context: options.Context = None,
    bos: options.Bos = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    dtype: options.Dtype = None,
    as_json: options.Json = False,
    out: options.Out = None,
) -> None:
    """Find the first checkpoint with findings, in about log2 n checks.

    Exits with 1 if there is one.
    """
    outputs = Outputs(as_json=as_json, out=out)

    def check(name: str) -> "CheckReport":
        model = open_model(name, device=device, dtype=dtype)
        corpus = open_text(model, text, sequences=sequences, context=context, bos=bos, seed=seed)
        with working(f"check {name}") as advance:
            return rs.check(model, corpus, remedies=False, seed=seed, progress=advance)

    from resstream.checks.bisection import bisect as run

    found = run(checkpoints, check, fail_on=fail_on)
    plain = {
        "schema": SCHEMA,
        "first_bad": found.first_bad,
        "last_good": found.last_good,
        "checked": found.checked,
        "findings": found.report.findings if found.report else (),
        "provenance": found.report.provenance if found.report else None,
    }
    outputs.emit(Document(plain), lambda: _shown(found))
    raise typer.Exit(FOUND if found.first_bad else 0)


def _shown(found: "Bisection") -> RenderableType:
    rows = list(found.checked.items())
    listed = table(("checked", "verdict"), rows)
    if found.first_bad is None:
        return Group(listed, Text("the last checkpoint has no findings"))
    before = f"; the last good one is {found.last_good}" if found.last_good else ""
    lines = [f"first bad checkpoint: {found.first_bad}{before}"]
    lines += [f"{f.code}: {f.statement}" for f in (found.report.findings if found.report else ())]
    return Group(listed, *(Text(printable(line)) for line in lines))
