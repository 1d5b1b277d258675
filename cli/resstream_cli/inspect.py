"""The verb `inspect`: which blocks, writes and readout were found, and how exact is the proof?"""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from resstream_cli import options
from resstream_cli.inputs import open_model, open_text
from resstream_cli.outputs import Document, Outputs
from resstream_cli.progress import working
from resstream_cli.tables import printable, table

if TYPE_CHECKING:
    from resstream import StreamModel
    from resstream.reports.page import Page
    from resstream.stream.provenance import Provenance
    from resstream.stream.spec import BlockSpec, StreamSpec

SCHEMA = "resstream.inspect/1"


def inspect(
    model: options.Model,
    *,
    text: options.TextToo = None,
    sequences: options.Sequences = 4,
    seed: options.Seed = 0,
    device: options.Device = None,
    dtype: options.Dtype = None,
    as_json: options.Json = False,
    out: options.Out = None,
    html: options.Html = None,
) -> None:
    """Show the blocks, writes, norms and readout of a model, and the residue of their proof.

    With --text the proof is also made on that text.
    """
    outputs = Outputs(as_json=as_json, out=out, html=html)
    stream = open_model(model, device=device, dtype=dtype)
    provenance, text_error = _proof(stream, text, sequences, seed)
    data = {"schema": SCHEMA, "provenance": provenance, **asdict(stream.spec)}
    if text_error is not None:
        data["text_replay_error"] = text_error
    outputs.emit(
        Document(data),
        lambda: _shown(stream.spec, text_error),
        lambda: _page(stream.spec, provenance, text_error),
    )


def _proof(
    model: "StreamModel", text: Path | None, sequences: int, seed: int
) -> "tuple[Provenance, float | None]":
    from resstream.stream.provenance import provenance_of

    if text is None:
        return provenance_of(model, "no text", "", seed=seed), None
    corpus = open_text(model, text, sequences=sequences, context=None, bos=None, seed=seed)
    with working("replay the text"):
        error = max(model.replay_error(batch.tokens) for batch in corpus.batches())
    return provenance_of(model, corpus.description, corpus.hash, seed=seed), error


def _page(spec: "StreamSpec", provenance: "Provenance", text_error: float | None) -> "Page":
    from resstream.reports.structure import inspect_page

    return inspect_page(spec, provenance, text_error=text_error)


def _shown(spec: "StreamSpec", text_error: float | None) -> RenderableType:
    opaque = [block for block in spec.blocks if block.opaque]
    facts = [
        f"{spec.model} ({spec.family}{', causal' if spec.causal else ''})",
        f"{spec.n_layers} blocks, d_model {spec.d_model}, d_vocab {spec.d_vocab or '-'}",
        f"embed {spec.embed or '-'}; final norm {spec.readout.norm or '-'}; "
        f"head {spec.readout.head or '-'}",
        f"replay error {spec.replay_error:.3g}; {len(opaque)} of {spec.n_layers} blocks are opaque",
    ]
    if text_error is not None:
        facts.append(f"replay error on the text {text_error:.3g}")
    headings = ("layer", "placement", "write", "module", "scale", "residue")
    rows = [row for block in spec.blocks for row in _rows(block)]
    reasons = [f"layer {block.layer} is opaque: {block.reason}" for block in opaque]
    lines = (Text(printable(line)) for line in [*facts, *reasons])
    return Group(*lines, table(headings, rows))


def _rows(block: "BlockSpec") -> Iterator[tuple[object, ...]]:
    placement = f"{block.placement}, parallel" if block.parallel else block.placement
    for write in block.writes:
        yield block.layer, placement, write.name, write.module, write.scale, f"{write.residue:.1e}"
