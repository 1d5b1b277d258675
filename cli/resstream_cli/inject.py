"""The verb `inject`: writes a copy of a model with one damaged layer, to test diagnoses with."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.text import Text

import resstream as rs
from resstream.errors import OutputError
from resstream_cli import options
from resstream_cli.inputs import open_model
from resstream_cli.outputs import Document, Outputs
from resstream_cli.progress import working

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
    seed: options.Seed = 0,
    device: options.Device = None,
    dtype: options.Dtype = None,
    as_json: options.Json = False,
) -> None:
    """Write a copy of a model with one damaged layer, for testing a diagnosis."""
    outputs = Outputs(as_json=as_json, out=out)
    if Path(model).exists() and out.resolve() == Path(model).resolve():
        raise OutputError(f"cannot write {out}: it is the model itself; choose another directory")
    stream = open_model(model, device=device, dtype=dtype)
    source = None if other is None else open_model(other, device=device, dtype=dtype)
    with working("damage and save"):
        from resstream.stream.provenance import provenance_of
        from resstream.stream.result import to_plain
        from resstream.stream.saving import save_model

        before = provenance_of(stream, "no text", "", seed=seed)
        done = rs.inject(
            stream, fault, layer=layer, write=write, severity=severity, seed=seed, other=source
        )
        save_model(stream, out)
    plain = {"schema": SCHEMA, "provenance": before, **to_plain(done), "out": str(out)}
    outputs.emit(Document(plain), lambda: Text(f"layer {layer}: {done.detail}"))
