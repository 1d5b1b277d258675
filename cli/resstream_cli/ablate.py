"""The verb `ablate`: what does the loss on a text become without each write?"""

from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Group, RenderableType
from rich.text import Text

import resstream as rs
from resstream.errors import ConfigError
from resstream_cli import options
from resstream_cli.inputs import layer_numbers, open_model, open_text
from resstream_cli.outputs import Outputs
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
        Literal["sublayer", "block"],
        typer.Option("--level", help="Single writes, or all writes of a block together."),
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

    A positive effect means that the write was useful.
    """
    outputs = Outputs(as_json=as_json, out=out, html=html)
    if sum(choice is not None for choice in (layers, sites, group)) > 1:
        raise ConfigError("--layers, --sites and --group exclude each other; give one of them")
    stream = open_model(model, device=device, dtype=dtype)
    n_layers = stream.spec.n_layers
    groups = None if group is None else [layer_numbers(item, n_layers=n_layers) for item in group]
    if layers is not None:
        sites = [f"blocks.{i}.hook_*_out" for i in layer_numbers(layers, n_layers=n_layers)]
    corpus = open_text(stream, text, sequences=sequences, context=context, bos=bos, seed=seed)
    with working("ablate") as advance:
        result = rs.ablate(
            stream,
            corpus,
            kind=kind,
            level=level,
            sites=sites,
            groups=groups,
            seed=seed,
            progress=advance,
        )
    outputs.emit(result, lambda: _shown(result), lambda: _page(result))


def _page(result: "AblationResult") -> "Page":
    from resstream.reports.pages import ablate_page

    return ablate_page(result)


def _shown(result: "AblationResult") -> RenderableType:
    headings = ("layer", "write", "kind", "effect (nats)", "95% from", "to", "tokens")
    rows = [
        (
            ",".join(map(str, item.layers)),
            item.write,
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
    ]
    return Group(*(Text(printable(line)) for line in facts), table(headings, rows))
