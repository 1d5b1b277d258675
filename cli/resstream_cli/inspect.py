"""The verb `inspect`: which blocks, writes and readout were found, and how exact is the proof?"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from resstream_cli import options
from resstream_cli.inputs import open_model
from resstream_cli.outputs import Document, Outputs
from resstream_cli.tables import printable, table

if TYPE_CHECKING:
    from resstream import StreamModel
    from resstream.stream.spec import BlockSpec, StreamSpec

SCHEMA = "resstream.inspect/1"


def inspect(
    model: options.Model,
    *,
    seed: options.Seed = 0,
    device: options.Device = None,
    dtype: options.Dtype = None,
    as_json: options.Json = False,
    out: options.Out = None,
) -> None:
    """Show the blocks, writes, norms and readout of a model, and the residue of their proof."""
    outputs = Outputs(as_json=as_json, out=out)
    stream = open_model(model, device=device, dtype=dtype)
    outputs.emit(_document(stream, seed), lambda: _shown(stream.spec))


def _document(model: "StreamModel", seed: int) -> Document:
    from resstream.stream.provenance import provenance_of
    from resstream.stream.result import to_plain

    provenance = provenance_of(model, "no text", "", seed=seed)
    return Document({"schema": SCHEMA, "provenance": provenance, **to_plain(model.spec)})


def _shown(spec: "StreamSpec") -> RenderableType:
    opaque = [block for block in spec.blocks if block.opaque]
    facts = [
        f"{spec.model} ({spec.family}{', causal' if spec.causal else ''})",
        f"{spec.n_layers} blocks, d_model {spec.d_model}, d_vocab {spec.d_vocab or '-'}",
        f"embed {spec.embed or '-'}; final norm {spec.readout.norm or '-'}; "
        f"head {spec.readout.head or '-'}",
        f"replay error {spec.replay_error:.3g}; {len(opaque)} of {spec.n_layers} blocks are opaque",
    ]
    headings = ("layer", "placement", "write", "module", "scale", "residue")
    rows = [row for block in spec.blocks for row in _rows(block)]
    reasons = [f"layer {block.layer} is opaque: {block.reason}" for block in opaque]
    lines = (Text(printable(line)) for line in [*facts, *reasons])
    return Group(*lines, table(headings, rows))


def _rows(block: "BlockSpec") -> Iterator[tuple[object, ...]]:
    placement = f"{block.placement}, parallel" if block.parallel else block.placement
    for write in block.writes:
        yield block.layer, placement, write.name, write.module, write.scale, f"{write.residue:.1e}"
