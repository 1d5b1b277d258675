"""What was found in a model, or done to it?  Pages of `inspect` and `inject`, which have no result.

The numbers of the proof are those of `resstream.stream.discovery`.
"""

from resstream.reports.page import Banner, Page, Section, Table, sentence
from resstream.stream.provenance import Provenance
from resstream.stream.spec import BlockSpec, StreamSpec

_COLUMNS = ("layer", "placement", "write", "module", "scale", "output matrix", "residue")


def inspect_page(
    spec: StreamSpec, provenance: Provenance, *, text_error: float | None = None
) -> Page:
    """The page of a discovered stream.

    Args:
        spec: What was found.
        provenance: Of the model.
        text_error: Largest difference between model and replay on a text of the user's.
    """
    opaque = [block for block in spec.blocks if block.opaque]
    facts: tuple[tuple[str, object], ...] = (
        ("family", spec.family),
        ("width of the stream", spec.d_model),
        ("vocabulary", spec.d_vocab),
        ("embedding", spec.embed),
        ("final norm", spec.readout.norm),
        ("head", spec.readout.head),
        ("replay error", spec.replay_error),
    )
    if text_error is not None:
        facts += (("replay error on the text", text_error),)
    return Page(
        kind="inspect",
        title=spec.model,
        banner=_banner(spec, opaque),
        facts=facts,
        sections=(_blocks(spec), *((_reasons(opaque),) if opaque else ())),
        provenance=provenance,
    )


def _banner(spec: StreamSpec, opaque: list[BlockSpec]) -> Banner:
    proved = len(spec.blocks) - len(opaque)
    said = f"{proved} of {len(spec.blocks)} blocks and {len(spec.writes)} writes are proved"
    return Banner("open" if opaque else "good", f"{len(spec.blocks)} blocks", sentence(said))


def _blocks(spec: StreamSpec) -> Section:
    rows = tuple(
        (
            block.layer,
            f"{block.placement}, parallel" if block.parallel else block.placement,
            write.name,
            write.module,
            write.scale,
            write.output_matrix,
            write.residue,
        )
        for block in spec.blocks
        for write in block.writes
    )
    return Section(
        title="Which writes does the stream get?",
        what_to_see="Each row is one write, in the order in which they are added.",
        table=Table(columns=_COLUMNS, rows=rows),
        definition=(
            "Found in the running module, without names of model families.  Residue: "
            "the norm of what a block's writes leave unexplained of its update of the stream, over "
            "the norm of that update."
        ),
    )


def _reasons(opaque: list[BlockSpec]) -> Section:
    return Section(
        title="Which blocks could not be taken apart?",
        what_to_see="Such a block is examined as a whole: its write is what it adds altogether.",
        table=Table(
            columns=("layer", "reason"),
            rows=tuple((block.layer, block.reason) for block in opaque),
        ),
        definition="Opaque: no sum of sublayer outputs gave the change of the stream.",
    )


def inject_page(
    detail: str,
    place: str,
    provenance: Provenance,
    *,
    out: str,
    losses: tuple[float, float] | None = None,
) -> Page:
    """The page of a damaged copy.

    Args:
        detail: What was changed, in a phrase.
        place: Layer and write.
        provenance: Of the model before the damage.
        out: Where the copy is.
        losses: Cross-entropy on the text before and after, nats per token.
    """
    facts: tuple[tuple[str, object], ...] = (("what was done", detail),)
    if losses is not None:
        before, after = losses
        facts += (
            ("loss before, nats per token", before),
            ("loss after", after),
            ("cost", after - before),
        )
    return Page(
        kind="inject",
        title=provenance.model,
        banner=Banner("plain", f"Damaged: {place}", f"The damaged copy is in {out}."),
        facts=facts,
        sections=(),
        provenance=provenance,
    )
