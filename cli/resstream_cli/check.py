"""The verb `check`: is a write collapsed, polluted or not finite, and which one is at fault?"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer
from rich.console import Group, RenderableType
from rich.text import Text

import resstream as rs
from resstream.errors import ConfigError
from resstream_cli import options
from resstream_cli.fixes import tried_fixes
from resstream_cli.inputs import open_model, open_text
from resstream_cli.outputs import Outputs, say
from resstream_cli.progress import working
from resstream_cli.tables import printable, table

if TYPE_CHECKING:
    from resstream import CheckReport, StreamModel
    from resstream.checks.keys import Key
    from resstream.checks.repairs import Weights
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
        Severity | None,
        typer.Option(
            "--fail-on", help="Exit with 1 from this severity on.", show_default="warning"
        ),
    ] = None,
    select: Annotated[
        list[str] | None,
        typer.Option(
            "--select", metavar="CODE", help="Only this rule, or group (RS2); may be repeated."
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option("--ignore", metavar="CODE", help="Not this rule; may be repeated."),
    ] = None,
    static: Annotated[
        bool, typer.Option("--static", help="Weights alone: read once, part by part, never run.")
    ] = False,
    reference: Annotated[
        str | None,
        typer.Option("--reference", metavar="MODEL", help="A good checkpoint of the same shape."),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option("--baseline", metavar="FILE", help="Findings that are accepted."),
    ] = None,
    write_baseline: Annotated[
        Path | None,
        typer.Option("--write-baseline", metavar="FILE", help="Accept what is found here."),
    ] = None,
    export_fix: Annotated[
        Path | None,
        typer.Option(
            "--export-fix",
            metavar="DIR|YAML",
            help="Write a copy with the best fixes applied; or, to FILE.yaml, the layers that "
            "mergekit makes it of.",
        ),
    ] = None,
    remedies: Annotated[
        bool, typer.Option("--remedies/--no-remedies", help="Try the fixes that apply, or do not.")
    ] = True,
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

    Exits with 1 if a confirmed finding is at or above --fail-on. Settings of a project stand in
    pyproject.toml under [tool.resstream.check].
    """
    outputs = Outputs(as_json=as_json, out=out, html=html)
    project = _Project.read(select, ignore, fail_on, baseline)
    if static:
        _refuse_with_static(reference=reference, text=text, export_fix=export_fix, html=html)
        report = project.accept(_static(model, project))
        _end(report, project, outputs, write_baseline)
    if export_fix is not None:
        from resstream.stream.saving import require_free

        require_free(export_fix)  # before minutes are spent on what could not be written
    stream = open_model(model, device=device, dtype=dtype)
    good = None if reference is None else open_model(reference, device=device, dtype=dtype)
    corpus = open_text(stream, text, sequences=sequences, context=context, bos=bos, seed=seed)
    with working("check") as advance:
        from resstream.checks.checking import check_and_fix

        found, weights = check_and_fix(
            stream,
            corpus,
            reference=good,
            select=project.select,
            ignore=project.ignore,
            remedies=remedies,
            seed=seed,
            progress=advance,
        )
    report = project.accept(found)
    page = lambda: _page(stream, corpus, report, ablations)  # noqa: E731
    export = lambda: export_fix and _export(stream, weights, export_fix, good)  # noqa: E731
    _end(report, project, outputs, write_baseline, page, export)


@dataclass(frozen=True, slots=True)
class _Project:
    """Options, and settings of the project where an option was not given."""

    select: list[str] | None
    ignore: list[str] | None
    fail_on: Severity
    accepted: "frozenset[Key]"

    @classmethod
    def read(
        cls,
        select: list[str] | None,
        ignore: list[str] | None,
        fail_on: Severity | None,
        baseline: Path | None,
    ) -> "_Project":
        from resstream.checks.baseline import read_baseline
        from resstream.checks.registry import active_codes
        from resstream.checks.settings import read_settings

        own = read_settings()
        chosen = select or (list(own.select) if own.select is not None else None)
        left_out = ignore or (list(own.ignore) if own.ignore is not None else None)
        active_codes(chosen, left_out)  # refuse unknown codes before a model is loaded
        file = baseline or own.baseline
        accepted = read_baseline(file) if file is not None else frozenset()
        return cls(chosen, left_out, fail_on or own.fail_on or "warning", accepted)

    def accept(self, report: "CheckReport") -> "CheckReport":
        from resstream.checks.baseline import accept

        return accept(report, self.accepted)


def _refuse_with_static(**options: object) -> None:
    for name, value in options.items():
        if value is not None:
            option = name.replace("_", "-")
            raise ConfigError(f"--{option} needs a run of the model; leave --static or it away")


def _static(model: str, project: _Project) -> "CheckReport":
    with working("read the weights"):
        from resstream.checks.static import check_static

        return check_static(model, select=project.select, ignore=project.ignore)


def _export(
    model: "StreamModel", weights: "Weights", place: Path, reference: "StreamModel | None"
) -> None:
    from resstream.checks.remedies import export_fix
    from resstream.checks.slices import SUFFIXES, write_slices

    if place.suffix in SUFFIXES:
        write_slices(model, weights, place, reference)
        say(f"slices for mergekit in {place}")
        return
    with working("write the repaired copy"):
        export_fix(model, weights, place)
    say(f"repaired copy in {place}")


def _end(
    report: "CheckReport",
    project: _Project,
    outputs: Outputs,
    write_baseline: Path | None,
    page: "Callable[[], Page] | None" = None,
    export: Callable[[], object] = lambda: None,
) -> NoReturn:
    """Write and print what was found, export what mends it, and exit."""
    if write_baseline is not None:
        from resstream.checks.baseline import write_baseline as write

        say(f"{write(write_baseline, report)} findings accepted in {write_baseline}")
    outputs.emit(report, lambda: _shown(report), page)
    export()  # last: what was found is not lost if there is nothing to export
    found = report.confirmed(at_least=project.fail_on)
    raise typer.Exit(FOUND if found and write_baseline is None else 0)


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
    lines = [Text(printable(line)) for line in _facts(report)]
    if not rows:
        return Group(*lines)
    parts: list[RenderableType] = [
        *lines,
        table(headings, rows),
        *map(Text, dict.fromkeys(remedies)),
    ]
    return Group(*parts, *tried_fixes(report))


def _facts(report: "CheckReport") -> list[str]:
    facts = [f"{report.model}: {report.text}"]
    if report.writes:
        facts.append(
            f"{len(report.writes)} writes read, {len(report.experiments)} experiments made; "
            f"loss {report.base_loss:.4g} nats per token"
        )
    if report.accepted:
        facts.append(f"{len(report.accepted)} findings are accepted by the baseline")
    return [*facts, f"verdict: {report.verdict}"]
