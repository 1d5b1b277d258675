"""The arguments and options that verbs share, each written once."""

from pathlib import Path
from typing import Annotated, Literal

import typer

DtypeName = Literal["float32", "float64", "bfloat16", "float16"]

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A Hugging Face directory or hub id, a .gguf file, a native checkpoint, "
        "or one of demo, demo:collapsed, demo:polluted.",
        show_default=False,
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else.")
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        help="Save the run there: JSON, CSV and Parquet, arrays, page, what was asked.",
    ),
]
Html = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Write one self-contained page; it opens offline."),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of everything that is drawn.")]
Device = Annotated[
    str | None,
    typer.Option("--device", metavar="DEVICE", help="Such as cpu or cuda:0.", show_default="cpu"),
]
Dtype = Annotated[
    DtypeName | None,
    typer.Option("--dtype", help="Precision of weights and stream.", show_default="float32"),
]
Text = Annotated[
    Path | None,
    typer.Option(
        "--text",
        metavar="FILE",
        help="Text to run on: .txt, .jsonl or .parquet.",
        show_default="a text that comes with resstream",
    ),
]
TextToo = Annotated[
    Path | None,
    typer.Option(
        "--text", metavar="FILE", help="Measure on a text as well: .txt, .jsonl or .parquet."
    ),
]
Sequences = Annotated[
    int, typer.Option("--sequences", min=1, help="Most sequences to take from the text.")
]
Context = Annotated[
    int | None,
    typer.Option(
        "--context",
        min=2,
        help="Most tokens in one sequence.",
        show_default="256, or what the model takes",
    ),
]
Bos = Annotated[
    bool | None,
    typer.Option(
        "--bos/--no-bos",
        help="Begin each sequence with the BOS token, or do not.",
        show_default="as the tokenizer does",
    ),
]
