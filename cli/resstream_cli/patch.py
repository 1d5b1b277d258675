"""The verb `patch`: at which layers and positions does what decides the answer lie?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from resstream.errors import ConfigError
from resstream_cli import options, sweeps
from resstream_cli.inputs import layer_numbers, open_model
from resstream_cli.outputs import Document, Outputs
from resstream_cli.progress import working
from resstream_cli.tables import printable, signed, table

if TYPE_CHECKING:
    from resstream.analysis.patch_result import PatchResult
    from resstream.reports.page import Page
    from resstream.sweep.plan import SweepPlan

_ROWS = 15


def patch(
    model: options.Model,
    *,
    clean: Annotated[
        str | None,
        typer.Option("--clean", metavar="TEXT", help="The prompt that leads to the answer."),
    ] = None,
    corrupted: Annotated[
        str | None,
        typer.Option("--corrupted", metavar="TEXT", help="The same with other words in it."),
    ] = None,
    answer: Annotated[
        str | None,
        typer.Option("--answer", metavar="TOKEN", help="What follows, with its leading space."),
    ] = None,
    wrong: Annotated[
        str | None,
        typer.Option("--wrong", metavar="TOKEN", help="What follows the corrupted prompt."),
    ] = None,
    pairs: Annotated[
        Path | None,
        typer.Option(
            "--pairs",
            metavar="FILE",
            help="Many pairs: .csv, .json or .jsonl with clean, corrupted, answer, wrong.",
        ),
    ] = None,
    site: Annotated[
        Literal[
            "resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out", "mixer_out", "head_out"
        ],
        typer.Option("--site", help="What is patched."),
    ] = "resid_pre",
    metric: Annotated[
        Literal["logit_diff", "probability", "rank", "kl"],
        typer.Option("--metric", help="What is measured at the last position."),
    ] = "logit_diff",
    direction: Annotated[
        Literal["denoising", "noising"],
        typer.Option(
            "--direction", help="Clean values into the corrupted run, or the other way round."
        ),
    ] = "denoising",
    layers: Annotated[
        str | None,
        typer.Option("--layers", metavar="LIST", help="Only these layers, such as 0,4-7."),
    ] = None,
    skip_unchanged: Annotated[
        bool,
        typer.Option(
            "--skip-unchanged/--every-cell",
            help="Answer cells that can't change anything without running them, or run all.",
        ),
    ] = True,
    screen: Annotated[
        int | None,
        typer.Option("--screen", metavar="K", help="Estimate all cells, run the K most promising."),
    ] = None,
    memory: sweeps.Memory = None,
    plan: sweeps.Plan = False,
    resume: sweeps.Resume = False,
    bos: options.Bos = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    dtype: options.Dtype = None,
    as_json: options.Json = False,
    out: options.Out = None,
    html: options.Html = None,
) -> None:
    """Put one run's values into another, everywhere, and see where the answer turns.

    Exact for every layer and position; with --out, an interrupted run can be resumed.
    """
    outputs = Outputs(as_json=as_json, out=out, html=html)
    sweeps.require_place(out, resume=resume)
    chosen = _pairs(clean, corrupted, answer, wrong, pairs)
    stream = open_model(model, device=device, dtype=dtype)
    from resstream.analysis.patching import prepare, run_prepared
    from resstream.sweep.grid import GridOptions

    wanted = None if layers is None else layer_numbers(layers, n_layers=stream.spec.n_layers)
    with working("prepare"):
        grid, encoded = prepare(
            stream,
            chosen,
            site=site,
            metric=metric,
            direction=direction,
            bos=bos,
            options=GridOptions(
                layers=wanted,
                skip_unchanged=skip_unchanged,
                memory=sweeps.memory_bytes(memory),
            ),
        )
    if plan:
        planned = grid.plan()
        seconds = grid.estimate_seconds()
        document = {"schema": "resstream.patch_plan/1", "plan": planned, "seconds": seconds}
        outputs.emit(Document(document), lambda: _planned(planned, seconds))
        return
    journal = sweeps.open_journal(out, resume=resume)
    with sweeps.keeping(journal), working("patch") as advance:
        result = run_prepared(
            grid, encoded, screen=screen, seed=seed, journal=journal, progress=advance
        )
    sweeps.say_peak_memory()
    outputs.emit(result, lambda: _shown(result), lambda: _page(result))
    if journal is not None:
        journal.remove()


def _pairs(
    clean: str | None,
    corrupted: str | None,
    answer: str | None,
    wrong: str | None,
    pairs: Path | None,
) -> Any:
    if pairs is not None:
        if any(text is not None for text in (clean, corrupted, answer, wrong)):
            raise ConfigError("--pairs excludes --clean, --corrupted, --answer and --wrong")
        return pairs
    if clean is None or corrupted is None:
        raise ConfigError("patch needs --clean and --corrupted, or --pairs FILE")
    return {"clean": clean, "corrupted": corrupted, "answer": answer, "wrong": wrong}


def _page(result: "PatchResult") -> "Page":
    from resstream.reports.patched import patch_page

    return patch_page(result)


def _planned(plan: "SweepPlan", seconds: float) -> RenderableType:
    how = "suffixes behind the base run" if plan.suffixes else f"whole sequences: {plan.reason}"
    first = f"{plan.variants} cells, {plan.computed} to be run as {how}"
    return sweeps.show_plan(first, plan, seconds)


def _shown(result: "PatchResult") -> RenderableType:
    facts = [
        f"{result.model}: {result.direction} {result.site}, {len(result.pairs)} pair"
        f"{'s' * (len(result.pairs) > 1)}, {result.metric}",
        f"tokens {list(result.tokens)}",
        f"clean {result.clean:.4f}, corrupted {result.corrupted:.4f}",
        f"{result.computed} cells run ({result.how}), {result.skipped} answered without running",
        *(f"mind: {warning}" for warning in result.warnings),
    ]
    if result.normalised_refused is not None:
        facts.append(f"not normalised: {result.normalised_refused}")
    if result.screening is not None:
        facts.append(
            f"of {result.screening.k} screened cells the estimate is off by "
            f"{result.screening.largest_difference:.4f} at most, Pearson "
            f"{result.screening.pearson:.3f}"
        )
    places = result.largest(result.effects.size)
    named = [_row(result, *place) for place in places[:_ROWS]]
    if len(places) > _ROWS:
        facts.append(f"the {_ROWS} largest of {len(places)} effects; --out or --json has all")
    headings = tuple(named[0]) if named else ()
    rows = [tuple(row.values()) for row in named]
    return Group(*(Text(printable(line)) for line in facts), table(headings, rows))


def _row(result: "PatchResult", layer: int, position: int, head: int | None) -> dict[str, object]:
    """Heading -> value; columns that this result can't fill are left out."""
    at = (layer, position) if head is None else (layer, position, head)
    row: dict[str, object] = {"layer": layer, "position": position}
    if head is not None:
        row["head"] = head
    row |= {"token": repr(result.tokens[position]), "effect": signed(float(result.effects[at]))}
    if result.ci_low is not None and result.ci_high is not None:
        row |= {
            "95% from": signed(float(result.ci_low[at])),
            "to": signed(float(result.ci_high[at])),
        }
    if result.normalised is not None:
        row["normalised"] = float(result.normalised[at])
    return row
