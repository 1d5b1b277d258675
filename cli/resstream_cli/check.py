"""The verb `check`: is a write collapsed, polluted or not finite, and which one is at fault?"""

import math
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Group, RenderableType
from rich.text import Text

import resstream as rs
from resstream_cli import options
from resstream_cli.inputs import open_model, open_text
from resstream_cli.outputs import Outputs, say
from resstream_cli.progress import working
from resstream_cli.tables import printable, table

if TYPE_CHECKING:
    from resstream import CheckReport, StreamModel
    from resstream.reports.page import Page
    from resstream.stream.texts import Corpus

Severity = Literal["info", "warning", "error"]

FOUND = 1
_QUICK = 1e12
"""Parameters x writes x tokens that are ablated unasked: well under a minute of two cores."""


def check(
    model: options.Model,
    *,
    fail_on: Annotated[
        Severity, typer.Option("--fail-on", help="Exit with 1 from this severity on.")
    ] = "warning",
    select: Annotated[
        list[str] | None,
        typer.Option("--select", metavar="CODE", help="Only this rule; may be repeated."),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option("--ignore", metavar="CODE", help="Not this rule; may be repeated."),
    ] = None,
    ablations: Annotated[
        bool | None,
        typer.Option(
            "--ablations/--no-ablations",
            help="Show on the page what every write is worth, or do not.",
            show_default="if it is quick",
        ),
    ] = None,
    text: options.Text = None,
    sequences: options.Sequences = 16,
    context: options.Context = None,
    bos: options.Bos = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    dtype: options.Dtype = None,
    as_json: options.Json = False,
    out: options.Out = None,
    html: options.Html = None,
) -> None:
    """Find collapsed and polluted writes, confirm them by experiment, and name the culprit.

    Exits with 1 if a confirmed finding is at or above --fail-on.
    """
    outputs = Outputs(as_json=as_json, out=out, html=html)
    stream = open_model(model, device=device, dtype=dtype)
    corpus = open_text(stream, text, sequences=sequences, context=context, bos=bos, seed=seed)
    with working("check") as advance:
        report = rs.check(stream, corpus, select=select, ignore=ignore, seed=seed, progress=advance)
    outputs.emit(report, lambda: _shown(report), lambda: _page(stream, corpus, report, ablations))
    if report.confirmed(at_least=fail_on):
        raise typer.Exit(FOUND)


def _page(
    model: "StreamModel", corpus: "Corpus", report: "CheckReport", ablations: bool | None
) -> "Page":
    """The report, with recording and ablations of the same text beneath it."""
    from resstream.reports.pages import check_page

    seed = report.provenance.seed
    with working("record for the page") as advance:
        recording = rs.record(model, corpus, seed=seed, progress=advance)
    if not _worth_ablating(model, corpus, report, ablations):
        return check_page(report, recording)
    with working("ablate for the page") as advance:
        return check_page(report, recording, rs.ablate(model, corpus, seed=seed, progress=advance))


def _worth_ablating(
    model: "StreamModel", corpus: "Corpus", report: "CheckReport", wanted: bool | None
) -> bool:
    if not math.isfinite(report.base_loss):
        return False  # the model predicts no tokens, or not in numbers
    if wanted is None:
        n_parameters = sum(value.numel() for value in model.module.parameters())
        wanted = n_parameters * len(model.spec.writes) * corpus.n_tokens < _QUICK
        if not wanted:
            say("no ablations on the page: they would take long here; --ablations makes them")
    return wanted


def _shown(report: "CheckReport") -> RenderableType:
    headings = ("severity", "status", "code", "layer", "write", "statement")
    rows = [
        (item.severity, item.status, item.code, item.layer, item.write, item.statement)
        for item in report.findings
    ]
    remedies = [f"{item.code}: {item.remedy}" for item in report.findings if item.remedy]
    facts = [
        f"{report.model}: {report.text}",
        f"{len(report.writes)} writes read, {len(report.experiments)} experiments made; "
        f"loss {report.base_loss:.4g} nats per token",
        f"verdict: {report.verdict}",
    ]
    lines = [Text(printable(line)) for line in facts]
    if not rows:
        return Group(*lines)
    return Group(*lines, table(headings, rows), *map(Text, dict.fromkeys(remedies)))
