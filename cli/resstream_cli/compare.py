"""The verb `compare`: where do two checkpoints differ, and which difference matters?"""

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
    from resstream.checks.comparison import CompareResult


def compare(
    model: options.Model,
    reference: Annotated[
        str,
        typer.Argument(
            metavar="REFERENCE", help="A checkpoint of the same shape.", show_default=False
        ),
    ],
    *,
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
    """Find changed weights, where the streams part, and what each changed block costs both ways."""
    outputs = Outputs(as_json=as_json, out=out, html=html)
    own = open_model(model, device=device, dtype=dtype)
    other = open_model(reference, device=device, dtype=dtype)
    corpus = open_text(own, text, sequences=sequences, context=context, bos=bos, seed=seed)
    with working("compare"):
        from resstream.checks.comparison import compare as run

        result = run(own, other, corpus, seed=seed)
    from resstream.reports.compared import compare_page

    outputs.emit(result, lambda: _shown(result), lambda: compare_page(result))


def _shown(result: "CompareResult") -> RenderableType:
    facts = [
        f"{result.model} against {result.reference}: {result.text}",
        f"{result.measure} {result.base:.4g}, of the reference {result.reference_base:.4g} nats "
        "per token",
        f"first write that is off by itself: {result.first_divergence or 'none'}",
    ]
    lines = [Text(printable(line)) for line in facts]
    if not result.differences:
        return Group(*lines, Text("all weights are the same"))
    headings = (
        "layer", "write", "tensors", "weights changed by", "own error",
        "reference's back", "95 %", "into the reference", "95 %",
    )  # fmt: skip
    rows = [
        (
            item.layer, item.write, len(item.tensors), item.weight_change, item.own_error,
            f"{item.restored:+.4g}", _interval(item.restored_ci),
            f"{item.transplanted:+.4g}", _interval(item.transplanted_ci),
        )
        for item in result.differences
    ]  # fmt: skip
    return Group(*lines, table(headings, rows))


def _interval(ends: tuple[float, float]) -> str:
    return f"{ends[0]:+.3g} to {ends[1]:+.3g}"
