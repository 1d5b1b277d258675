"""The verb `attribute`: which writes speak for the answer?"""

from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from resstream_cli import options
from resstream_cli.inputs import open_model
from resstream_cli.outputs import Outputs
from resstream_cli.progress import working
from resstream_cli.tables import printable, signed, table

if TYPE_CHECKING:
    from resstream.analysis.direct_logit_attribution import AttributionResult

_MOST_ROWS = 20


def attribute(
    model: options.Model,
    *,
    prompt: Annotated[
        list[str], typer.Option("--prompt", help="A prompt; may be repeated.", show_default=False)
    ],
    answer: Annotated[
        str | None,
        typer.Option("--answer", help="Token to explain.", show_default="the first choice"),
    ] = None,
    wrong: Annotated[
        str | None, typer.Option("--wrong", help="Token whose logit is subtracted.")
    ] = None,
    level: Annotated[
        Literal["write", "head", "neuron"],
        typer.Option("--level", help="Whole writes, or attention heads, or MLP neurons."),
    ] = "write",
    position: Annotated[
        int, typer.Option("--position", help="Where the answer is predicted; -1 is the last token.")
    ] = -1,
    top_k: Annotated[int, typer.Option("--top-k", min=1, help="How many neurons to name.")] = 40,
    device: options.Device = None,
    dtype: options.Dtype = None,
    as_json: options.Json = False,
    out: options.Out = None,
    html: options.Html = None,
) -> None:
    """Take a logit, or a difference of two, apart into what every part writes into it."""
    outputs = Outputs(as_json=as_json, out=out, html=html)
    stream = open_model(model, device=device, dtype=dtype)
    from resstream.analysis.direct_logit_attribution import direct_logit_attribution
    from resstream.reports.attributed import attribute_page

    with working("attribute"):
        result = direct_logit_attribution(
            stream,
            prompt,
            answer=answer,
            wrong=wrong,
            level=level,
            position=position,
            top_k=top_k,
        )
    outputs.emit(result, lambda: _shown(result), lambda: attribute_page(result))


def _shown(result: "AttributionResult") -> RenderableType:
    import numpy as np

    mean, erased = result.contributions.mean(0), np.median(result.erased, axis=0)
    largest = np.argsort(-np.abs(mean), kind="stable")[:_MOST_ROWS]
    rows = [
        (result.parts[i], signed(float(mean[i])), None if np.isnan(erased[i]) else float(erased[i]))
        for i in largest
    ]
    lines = [
        f"{result.model}: {', '.join(dict.fromkeys(result.question))}",
        f"explained {result.explained.mean():+.4f} logits; the parts sum to "
        f"{result.contributions.sum(1).mean():+.4f} (off by "
        f"{result.completeness_error.max():.1e} of the logit at most)",
        *(f"mind: {warning}" for warning in result.warnings),
    ]
    headings = ("part", "logits", "erased later")
    return Group(*(Text(printable(line)) for line in lines), table(headings, rows))
