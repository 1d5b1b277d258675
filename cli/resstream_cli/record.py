"""The verb `record`: how large is each write, which way does it point, how much of it survives?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

import resstream as rs
from resstream_cli import options
from resstream_cli.inputs import open_model, open_text
from resstream_cli.outputs import Outputs
from resstream_cli.progress import working
from resstream_cli.tables import printable, table

if TYPE_CHECKING:
    from resstream import Recording
    from resstream.reports.page import Page

COLUMNS = {
    "write norm": "write_norm",
    "relative": "relative_norm",
    "cosine": "cosine",
    "top channel": "channel_share",
    "survives": "survival",
}
"""Heading of the table -> metric of the recording."""

_LEGEND = (
    "Medians over tokens. write norm: size of the write, in units of the stream; relative: over "
    "the size of the stream it is added to; cosine: with that stream; top channel: share of its "
    "square in one channel; survives: share that is still there at the end (1: all of it)."
)


def record(
    model: options.Model,
    *,
    sites: Annotated[
        list[str] | None,
        typer.Option(
            "--sites", metavar="GLOB", help="Keep the activations of these sites; may be repeated."
        ),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option("--keep", metavar="DIR", help="Where the activations of --sites are kept."),
    ] = None,
    text: options.Text = None,
    sequences: options.Sequences = 16,
    context: options.Context = None,
    bos: options.Bos = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    dtype: options.Dtype = None,
    as_json: options.Json = False,
    out: options.Out = None,
    html: options.Html = None,
) -> None:
    """Measure every write in one pass: size, direction, channels, and what survives of it.

    Medians are over all tokens but the first ones and those with massive activations.
    """
    outputs = Outputs(as_json=as_json, out=out, html=html)
    stream = open_model(model, device=device, dtype=dtype)
    corpus = open_text(stream, text, sequences=sequences, context=context, bos=bos, seed=seed)
    with working("record") as advance:
        recording = rs.record(stream, corpus, sites=sites, keep=keep, seed=seed, progress=advance)
    outputs.emit(recording, lambda: _shown(recording), lambda: _page(recording))


def _page(result: "Recording") -> "Page":
    from resstream.reports.pages import record_page

    return record_page(result)


def _shown(recording: "Recording") -> RenderableType:
    body = 0
    medians = [recording.summary(metric).median[:, body] for metric in COLUMNS.values()]
    rows = [
        (int(recording.layers[row]), name, *(float(column[row]) for column in medians))
        for row, name in enumerate(recording.names)
    ]
    facts = [
        f"{recording.provenance.model}: {recording.text}",
        f"the stream grows by {recording.growth:.3f} a block (R2 {recording.growth_r2:.2f})",
    ]
    culprit = recording.first_non_finite
    if culprit is not None:
        facts.append(f"not finite: {culprit.value} first at {culprit.site}, token {culprit.token}")
    lines = (Text(printable(line)) for line in facts)
    return Group(*lines, table(("layer", "write", *COLUMNS), rows), Text(_LEGEND))
