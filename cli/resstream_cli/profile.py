"""The verb `profile`: how do ranks, attention, gradients or rounding run through the depth?"""

from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from resstream_cli import options
from resstream_cli.inputs import open_model, open_text
from resstream_cli.outputs import Outputs
from resstream_cli.progress import working
from resstream_cli.tables import printable, table

if TYPE_CHECKING:
    from resstream.reports.profiled import Profile
    from resstream.stream.model import StreamModel
    from resstream.stream.texts import Corpus

Reading = Literal["ranks", "attention", "gradients", "precision"]


def profile(
    model: options.Model,
    *,
    reading: Annotated[
        Reading,
        typer.Option(
            "--reading",
            help="Ranks and outliers of the stream, attention heads, gradients, or what bfloat16 "
            "loses.",
        ),
    ] = "ranks",
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
    """Measure one reading of the model at every depth on a text."""
    outputs = Outputs(as_json=as_json, out=out, html=html)
    stream = open_model(model, device=device, dtype=dtype)
    corpus = open_text(stream, text, sequences=sequences, context=context, bos=bos, seed=seed)
    from resstream.reports.profiled import profile_page

    with working(reading):
        result = _measure(reading, stream, corpus, seed)
    outputs.emit(result, lambda: _shown(result), lambda: profile_page(result))


def _measure(reading: Reading, stream: "StreamModel", corpus: "Corpus", seed: int) -> "Profile":
    from resstream.analysis.attention import attention
    from resstream.analysis.gradients import gradients
    from resstream.analysis.precision import precision_drift
    from resstream.analysis.ranks import ranks

    measures = {
        "ranks": ranks,
        "attention": attention,
        "gradients": gradients,
        "precision": precision_drift,
    }
    return measures[reading](stream, corpus, seed=seed)


def _shown(result: "Profile") -> RenderableType:
    frame = result.to_dataframe()
    facts = (f"{result.model}: {result.text}",)
    rows = frame.astype(object).to_numpy().tolist()
    return Group(*(Text(printable(line)) for line in facts), table(tuple(frame.columns), rows))
