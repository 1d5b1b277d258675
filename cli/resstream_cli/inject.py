"""The verb `inject`: writes a copy of a model with one damaged layer, to test diagnoses with."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.text import Text

import resstream as rs
from resstream.errors import OutputError
from resstream_cli import options
from resstream_cli.inputs import open_model, open_text
from resstream_cli.outputs import Document, Outputs
from resstream_cli.progress import working

if TYPE_CHECKING:
    from resstream import StreamModel
    from resstream.reports.page import Page
    from resstream.stream.faults import Injection
    from resstream.stream.provenance import Provenance
    from resstream.stream.texts import Corpus

SCHEMA = "resstream.inject/1"

Fault = Literal[
    "zero",
    "scale",
    "gain_scale",
    "reinit",
    "noise",
    "sign_flip",
    "channel_spike",
    "quantize",
    "bit_flip",
    "permute_heads",
    "uniform_attention",
    "swap",
    "duplicate",
    "rank_one",
    "nan",
    "rope_base",
    "stale",
]


def inject(
    model: options.Model,
    *,
    fault: Annotated[Fault, typer.Option("--fault", help="What to break.", show_default=False)],
    layer: Annotated[
        int, typer.Option("--layer", min=0, help="In which block, from 0.", show_default=False)
    ],
    out: Annotated[
        Path,
        typer.Option("--out", metavar="DIR", help="Where the copy goes.", show_default=False),
    ],
    write: Annotated[
        Literal["attn", "mlp", "mixer"] | None,
        typer.Option("--write", help="In which of its writes, for faults of one write."),
    ] = None,
    severity: Annotated[
        float | None,
        typer.Option(
            "--severity",
            help="How much: a factor (scale, gain_scale, channel_spike), standard deviations "
            "(noise), bits (quantize), a bit (bit_flip), layers further (swap), base (rope_base).",
        ),
    ] = None,
    other: Annotated[
        str | None,
        typer.Option("--other", metavar="MODEL", help="Where the layer comes from (stale)."),
    ] = None,
    text: options.TextToo = None,
    sequences: options.Sequences = 16,
    seed: options.Seed = 0,
    device: options.Device = None,
    dtype: options.Dtype = None,
    as_json: options.Json = False,
    html: options.Html = None,
) -> None:
    """Write a copy of a model with one damaged layer, for testing a diagnosis.

    With --text the loss on that text is measured before and after.
    """
    outputs = Outputs(as_json=as_json, out=out, html=html)
    if Path(model).exists() and out.resolve() == Path(model).resolve():
        raise OutputError(f"cannot write {out}: it is the model itself; choose another directory")
    stream = open_model(model, device=device, dtype=dtype)
    source = None if other is None else open_model(other, device=device, dtype=dtype)
    corpus = None
    if text is not None:
        corpus = open_text(stream, text, sequences=sequences, context=None, bos=None, seed=seed)
    with working("damage and save"):
        from resstream.stream.provenance import provenance_of
        from resstream.stream.saving import save_model

        described = ("no text", "") if corpus is None else (corpus.description, corpus.hash)
        origin = provenance_of(stream, *described, seed=seed)
        before = _loss(stream, corpus)
        done = rs.inject(
            stream, fault, layer=layer, write=write, severity=severity, seed=seed, other=source
        )
        after = _loss(stream, corpus)
        save_model(stream, out)
    data = {"schema": SCHEMA, "provenance": origin, **asdict(done), "out": str(out)}
    losses = None if before is None or after is None else (before, after)
    if losses is not None:
        data |= {"loss_before": losses[0], "loss_after": losses[1]}
    outputs.emit(
        Document(data), lambda: _shown(done, losses), lambda: _page(done, origin, out, losses)
    )


def _loss(model: "StreamModel", corpus: "Corpus | None") -> float | None:
    if corpus is None:
        return None
    from resstream.analysis.losses import mean_loss

    return mean_loss(model, corpus)


def _shown(done: "Injection", losses: tuple[float, float] | None) -> Text:
    cost = "" if losses is None else f"; loss {losses[0]:.4f} -> {losses[1]:.4f} nats per token"
    return Text(f"layer {done.layer}: {done.detail}{cost}")


def _page(
    done: "Injection", origin: "Provenance", out: Path, losses: tuple[float, float] | None
) -> "Page":
    from resstream.reports.structure import inject_page

    place = f"layer {done.layer} {done.write or ''}".strip()
    return inject_page(done.detail, place, origin, out=str(out), losses=losses)
