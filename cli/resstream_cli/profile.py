"""The verb `profile`: how do ranks, attention, gradients or rounding run through the depth?"""

import math
from collections.abc import Iterator
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
    """The columns that matter most, in words; the files have them all."""
    chosen, legend = _COLUMNS[result.schema]
    frame = result.to_dataframe()
    rows = [
        tuple(_value(name, value) for name, value in zip(chosen, row, strict=True))
        for row in frame[list(chosen)].astype(object).to_numpy().tolist()
    ]
    lines = (f"{result.model}: {result.text}", *_counted(result))
    shown = table(tuple(chosen.values()), rows)
    left = len(frame.columns) - len(chosen)
    more = f"{left} more columns: --out, or --html." if left else ""
    return Group(*(Text(printable(line)) for line in lines), shown, Text(f"{legend} {more}"))


def _counted(result: "Profile") -> Iterator[str]:
    from resstream.analysis.ranks import RankResult

    if isinstance(result, RankResult):
        counts = zip(result.token_sets, result.n_tokens.tolist(), strict=True)
        yield "tokens: " + ", ".join(f"{name} {count}" for name, count in counts)


def _value(column: str, value: object) -> object:
    """A dash where there is nothing to measure: NaN of a write or weights that are not there."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if column in _MAY_LACK and isinstance(value, float) and math.isnan(value):
        return None
    return value


_COLUMNS: dict[str, tuple[dict[str, str], str]] = {
    "resstream.ranks/1": (
        {
            "point": "depth",
            "tokens": "tokens",
            "effective_rank": "effective rank",
            "participation_ratio": "participation ratio",
            "anisotropy": "anisotropy",
            "channel_share": "largest channel",
        },
        "depth: the stream after this block; body: tokens that are neither first nor massive. "
        "Ranks count directions. Anisotropy: mean cosine of two tokens. Largest channel: its share "
        "of all squares.",
    ),
    "resstream.attention/1": (
        {
            "layer": "layer",
            "head": "head",
            "entropy": "entropy",
            "first_share": "first token",
            "sink_rate": "sink rate",
            "write_norm": "write norm",
            "is_dormant": "dormant",
        },
        "Entropy: 1 is attending evenly. First token: share of attention that it gets. Sink rate: "
        "share of sequences where that is above 0.3. Write norm: of what the head adds.",
    ),
    "resstream.gradients/1": (
        {
            "point": "depth",
            "stream_q05": "stream, 5 %",
            "stream_q50": "stream, median",
            "stream_q95": "stream, 95 %",
            "weights_norm": "weights",
        },
        "Stream: norm of the gradient of the loss (nats) to one token's stream, over tokens. "
        "Weights: of the mean loss to all weights of the block that ends here.",
    ),
    "resstream.precision/1": (
        {
            "point": "depth",
            "stratum": "tokens",
            "drift_q50": "drift",
            "write_error_q50": "write error",
            "lost_share_q50": "lost share",
            "size_ratio_q50": "stream / write",
        },
        "Medians over tokens. Drift: distance of the two streams over the size of the wide one. "
        "Write error: what rounding does to the write, over its size. Lost share: channels where "
        "the write changes nothing. Stream / write: sizes.",
    ),
}
"""Schema -> columns of the table with their headings, and what they mean."""

_MAY_LACK = {"weights_norm", "write_norm", "write_error_q50", "lost_share_q50", "size_ratio_q50"}
"""Columns with rows where there is nothing to measure."""
