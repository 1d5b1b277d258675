"""The verb `similarity`: which depths are alike, and which blocks hardly move the stream?"""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from resstream_cli import options
from resstream_cli.inputs import open_model, open_text
from resstream_cli.outputs import Outputs
from resstream_cli.progress import working
from resstream_cli.tables import printable, table

if TYPE_CHECKING:
    from resstream.analysis.similarity import SimilarityResult


def similarity(
    model: options.Model,
    *,
    n_tokens: Annotated[
        int, typer.Option("--tokens", min=8, help="How many tokens of the text to compare.")
    ] = 512,
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
    """Compare the stream after each block with that after every other: cosine, CKA, angle.

    A block of little influence is not thereby unimportant: `ablate` tells.
    """
    outputs = Outputs(as_json=as_json, out=out, html=html)
    stream = open_model(model, device=device, dtype=dtype)
    corpus = open_text(stream, text, sequences=sequences, context=context, bos=bos, seed=seed)
    from resstream.analysis.similarity import similarity as compare
    from resstream.reports.lensed import similarity_page

    with working("similarity"):
        result = compare(stream, corpus, n_tokens=n_tokens, seed=seed)
    outputs.emit(result, lambda: _shown(result), lambda: similarity_page(result))


def _shown(result: "SimilarityResult") -> RenderableType:
    headings = ("block", "influence", "angle to the next", "CKA of input and output")
    cka = result.cka.diagonal(1).tolist()
    angle, influence = result.angular_distance[0].tolist(), result.block_influence.tolist()
    rows = list(zip(result.depths[1:], influence, angle, cka, strict=True))
    facts = [
        f"{result.model}: {result.text}",
        f"{result.n_tokens} tokens; angles (of pi) over {result.n_last} last tokens",
    ]
    return Group(*(Text(printable(line)) for line in facts), table(headings, rows))
