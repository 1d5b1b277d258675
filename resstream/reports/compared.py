"""Where do two checkpoints differ, and which difference matters?  Its page."""

from resstream.checks.comparison import CompareResult, Difference
from resstream.figures.profile import Series, layer_profile
from resstream.reports.page import Banner, Page, Section, Table, sentence

_COLUMNS = (
    "block",
    "tensors",
    "weight change",
    "own error",
    "restored",
    "95 % interval",
    "transplanted",
    "95 % interval ",
)


def compare_page(result: CompareResult) -> Page:
    """The page of a comparison."""
    return Page(
        kind="compare",
        title=result.model,
        banner=_banner(result),
        facts=(
            ("reference", result.reference),
            ("text", result.text),
            (f"{result.measure} of the model, nats per token", result.base),
            (f"{result.measure} of the reference", result.reference_base),
            ("first write that is off by itself", result.first_divergence),
        ),
        sections=(_blocks(result), _drift(result)),
        provenance=result.provenance,
    )


def _banner(result: CompareResult) -> Banner:
    if not result.differences:
        return Banner("good", "No weights differ", "Both hold the same values everywhere.")
    best = min(result.differences, key=lambda item: item.restored)
    said = (
        f"with the reference's weights in {_place(best)} the {result.measure} changes by "
        f"{best.restored:+.4g} nats per token"
    )
    return Banner("plain", f"{len(result.differences)} places differ", sentence(said))


def _place(item: Difference) -> str:
    return "what lies outside of blocks" if item.layer is None else f"block {item.layer}"


def _blocks(result: CompareResult) -> Section:
    rows = tuple(
        (
            _place(item),
            len(item.tensors),
            item.weight_change,
            item.own_error,
            item.restored,
            item.restored_ci,
            item.transplanted,
            item.transplanted_ci,
        )
        for item in result.differences
    )
    return Section(
        title="Which difference matters?",
        what_to_see=(
            "Restored, left of 0: the model gets better with the reference's block. Into good, "
            "right of 0: the reference gets worse with the model's block."
        ),
        figure=result.plot() if result.differences else None,
        table=Table(columns=_COLUMNS, rows=rows),
        definition=(
            f"Change of the {result.measure} in nats per token with the weights of one block taken "
            "from the other checkpoint; bootstrap intervals over documents. Own error: largest "
            "error of the block's writes on the reference's stream, over their norm."
        ),
    )


def _drift(result: CompareResult) -> Section:
    series = [Series(name="block", values=result.drift)]
    return Section(
        title="Where do the streams part?",
        what_to_see="The first step up is where the damage begins; what follows carries it on.",
        figure=layer_profile(series, value_title="distance of the streams / reference's norm"),
        definition=(
            "Norm of the difference of both streams behind a block over that of the reference's, "
            "median over tokens; no unit."
        ),
    )
