"""The verb `experiment`: tries what is claimed of residual connections, and says what held."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from resstream.errors import ConfigError
from resstream_cli import options
from resstream_cli.outputs import Document, Outputs
from resstream_cli.progress import working
from resstream_cli.tables import table

if TYPE_CHECKING:
    from resstream.train.experiments.experiment import Experiment
    from resstream.train.experiments.report import ExperimentReport

SCHEMA = "resstream.experiment_list/1"


def experiment(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Which ones.", show_default=False),
    ] = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="All that there are.")] = False,
    listed: Annotated[
        bool, typer.Option("--list", help="Name them with their claims, and run none.")
    ] = False,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Small sizes and few seeds: at most half a minute each."),
    ] = False,
    seed: options.Seed = 0,
    as_json: options.Json = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Save results there; those that are there already are not run again.",
        ),
    ] = None,
    html: options.Html = None,
) -> None:
    """Try what is claimed of residual connections on small models, and say what held."""
    outputs = Outputs(as_json=as_json, out=out, html=html)
    with working("find experiments"):
        from resstream.train.experiments.registry import experiments, find_experiments

        chosen = experiments() if every or listed else find_experiments(names or [])
    if listed:
        outputs.emit(_listing(chosen), lambda: _shown_list(chosen))
        return
    if not chosen:
        raise ConfigError("name an experiment, or give --all or --list")
    _run(chosen, outputs, quick=quick, seed=seed)


def _run(chosen: "tuple[Experiment, ...]", outputs: Outputs, *, quick: bool, seed: int) -> None:
    from resstream.reports.experimented import experiment_page
    from resstream.train.experiments.running import run_experiments

    with working("experiments") as advance:
        report = run_experiments(
            chosen,
            size="quick" if quick else "full",
            seed=seed,
            out=outputs.out,
            told=lambda name, done, total: advance(done, total),
        )
    outputs.emit(report, lambda: _shown(report), lambda: experiment_page(report))


def _listing(chosen: "tuple[Experiment, ...]") -> Document:
    keys = ("name", "title", "claim", "source", "rows")
    plain = [{key: getattr(item, key) for key in keys} for item in chosen]
    return Document({"schema": SCHEMA, "experiments": plain})


def _shown_list(chosen: "tuple[Experiment, ...]") -> RenderableType:
    return table(("name", "claim"), [(item.name, item.claim) for item in chosen])


def _shown(report: "ExperimentReport") -> RenderableType:
    parts: list[RenderableType] = []
    for record in report.experiments:
        parts += [
            Text(f"{record.title} [{record.name}]", style="bold"),
            Text(f"claim    {record.claim}"),
            Text(f"source   {record.source}"),
            Text(f"verdict  {record.verdict}: {record.statement}"),
        ]
        rows = [
            (item.quantity, item.at, item.value, item.low, item.high, item.n_seeds or None)
            for item in record.measured
        ]
        parts.append(table(("quantity", "at", "median", "least", "greatest", "seeds"), rows))
    counts = ", ".join(f"{count} {verdict}" for verdict, count in report.verdicts().items())
    return Group(*parts, Text(counts))
