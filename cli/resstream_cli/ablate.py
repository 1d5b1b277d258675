"""The verb `ablate`: what does the loss on a text become without each write?"""

from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Group, RenderableType
from rich.text import Text

import resstream as rs
from resstream.errors import ConfigError
from resstream_cli import options, sweeps
from resstream_cli.inputs import layer_numbers, open_model, open_text
from resstream_cli.outputs import Document, Outputs
from resstream_cli.progress import working
from resstream_cli.tables import printable, signed, table

if TYPE_CHECKING:
    from resstream import AblationResult
    from resstream.reports.page import Page


def ablate(
    model: options.Model,
    *,
    kind: Annotated[
        Literal["zero", "mean", "resample"],
        typer.Option("--kind", help="What takes the place of a write."),
    ] = "zero",
    level: Annotated[
        Literal["sublayer", "block", "head"],
        typer.Option(
            "--level", help="Single writes, all writes of a block together, or attention heads."
        ),
    ] = "sublayer",
    layers: Annotated[
        str | None,
        typer.Option("--layers", metavar="LIST", help="Only these layers, such as 0,4-7."),
    ] = None,
    sites: Annotated[
        list[str] | None,
        typer.Option(
            "--sites",
            metavar="GLOB",
            help="Only these writes, such as 'blocks.*.mlp_out'; may be repeated.",
        ),
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(
            "--group", metavar="LIST", help="Ablate these layers as one; may be repeated."
        ),
    ] = None,
    per_token: Annotated[
        bool, typer.Option("--per-token", help="Keep the effect on every token's loss as well.")
    ] = False,
    memory: sweeps.Memory = None,
    plan: sweeps.Plan = False,
    resume: sweeps.Resume = False,
    text: options.Text = None,
    sequences: options.Sequences = 8,
    context: options.Context = None,
    bos: options.Bos = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    dtype: options.Dtype = None,
    as_json: options.Json = False,
    out: options.Out = None,
    html: options.Html = None,
) -> None:
    """Take writes away and measure the loss, in nats per token with 95% intervals.

    A positive effect means that the write was useful.  With --out, an interrupted run can be
    resumed.
    """
    outputs = Outputs(as_json=as_json, out=out, html=html)
    if sum(choice is not None for choice in (layers, sites, group)) > 1:
        raise ConfigError("--layers, --sites and --group exclude each other; give one of them")
    sweeps.require_place(out, resume=resume)
    stream = open_model(model, device=device, dtype=dtype)
    n_layers = stream.spec.n_layers
    groups = None if group is None else [layer_numbers(item, n_layers=n_layers) for item in group]
    if layers is not None:
        sites = [f"blocks.{i}.hook_*_out" for i in layer_numbers(layers, n_layers=n_layers)]
    corpus = open_text(stream, text, sequences=sequences, context=context, bos=bos, seed=seed)
    limit = sweeps.memory_bytes(memory)
    if plan:
        from resstream.analysis.ablation import AblationSweep
        from resstream.analysis.ablation_targets import choose_targets

        targets = choose_targets(stream, level=level, sites=sites, groups=groups)
        sweep = AblationSweep(stream, corpus, targets, kind=kind, seed=seed, memory=limit)
        planned, seconds = sweep.plan(), sweep.estimate_seconds()
        document = {"schema": "resstream.ablate_plan/1", "plan": planned, "seconds": seconds}
        first = f"{planned.variants} ablations over {corpus.n_tokens} tokens"
        outputs.emit(Document(document), lambda: sweeps.show_plan(first, planned, seconds))
        return
    journal = sweeps.open_journal(out, resume=resume)
    with sweeps.keeping(journal), working("ablate") as advance:
        result = rs.ablate(
            stream,
            corpus,
            kind=kind,
            level=level,
            sites=sites,
            groups=groups,
            per_token=per_token,
            memory=limit,
            seed=seed,
            journal=journal,
            progress=advance,
        )
    sweeps.say_peak_memory()
    outputs.emit(result, lambda: _shown(result), lambda: _page(result))
    if journal is not None:
        journal.remove()


def _page(result: "AblationResult") -> "Page":
    from resstream.reports.pages import ablate_page

    return ablate_page(result)


def _shown(result: "AblationResult") -> RenderableType:
    heads = any(item.head is not None for item in result.effects)
    headings = ("layer", "write", "kind", "effect (nats)", "95% from", "to", "tokens")
    rows = [
        (
            ",".join(map(str, item.layers)),
            item.write,
            *([item.head] if heads else []),
            item.kind,
            signed(item.effect),
            signed(item.ci[0]),
            signed(item.ci[1]),
            item.n_tokens,
        )
        for item in result.effects
    ]
    facts = [
        f"{result.model}: {result.text}",
        f"loss {result.base_loss:.4f} nats per token with all writes in place",
        *(f"mind: {warning}" for warning in result.warnings),
    ]
    named = (*headings[:2], "head", *headings[2:]) if heads else headings
    return Group(*(Text(printable(line)) for line in facts), table(named, rows))
