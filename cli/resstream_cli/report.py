"""The verb `report`: what do several saved results say together?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

import resstream as rs
from resstream_cli import options
from resstream_cli.outputs import Document, Outputs
from resstream_cli.progress import working
from resstream_cli.tables import printable, table

if TYPE_CHECKING:
    from resstream.reports.page import Report

SCHEMA = "resstream.report/1"


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Directories that `--out` of any verb, or `save`, has written.",
            show_default=False,
        ),
    ],
    *,
    as_json: options.Json = False,
    out: options.Out = None,
    html: options.Html = None,
) -> None:
    """Put saved results together: a summary of what each says, and one page of all.

    Nothing is run; what is shown is what was measured then.
    """
    outputs = Outputs(as_json=as_json, out=out, html=html)
    with working("report"):
        results = [(run, rs.load_result(run)) for run in runs]
        from resstream.reports.pages import report_of

        made = report_of(results)
    summary = [
        {
            "run": part.source,
            "result": result.schema,
            "model": part.page.title,
            "headline": part.page.banner.headline,
            "sentence": part.page.banner.sentence,
            "provenance": result.provenance,
        }
        for part, (_, result) in zip(made.parts, results, strict=True)
    ]
    outputs.emit(Document({"schema": SCHEMA, "runs": summary}), lambda: _shown(made), lambda: made)


def _shown(made: "Report") -> RenderableType:
    pages = [part.page for part in made.parts]
    rows = [(page.kind, page.title, page.banner.headline, page.banner.sentence) for page in pages]
    facts = (f"{made.banner.headline}: {made.banner.sentence}",)
    headings = ("result", "model", "says", "rests on")
    return Group(*(Text(printable(line)) for line in facts), table(headings, rows))
