"""What does a patching sweep show?  Its page."""

from resstream.analysis.patch_result import PatchResult
from resstream.reports.page import Banner, Page, Section, Table, sentence

_MOST_ROWS = 30
_WHAT = {
    "denoising": "the clean run's value is put into the corrupted run: what suffices",
    "noising": "the corrupted run's value is put into the clean run: what is needed",
}


def patch_page(result: PatchResult) -> Page:
    """The page of `resstream patch`."""
    return Page(
        kind="patch",
        title=result.model,
        banner=_banner(result),
        facts=(
            ("site", result.site),
            ("direction", result.direction),
            ("prompt pairs", len(result.pairs)),
            (f"clean {result.metric}", result.clean),
            (f"corrupted {result.metric}", result.corrupted),
            ("cells run", result.computed),
            ("cells answered without running", result.skipped),
            ("run as", result.how),
            *(("mind", warning) for warning in result.warnings),
        ),
        sections=(_section(result),),
        provenance=result.provenance,
    )


def _banner(result: PatchResult) -> Banner:
    found = result.largest(1)
    if not found:
        return Banner("plain", "Nothing was patched", "No cell was run.")
    layer, position, head = found[0]
    place = f"layer {layer}, position {position}" + ("" if head is None else f", head {head}")
    effect = result.effects[found[0] if head is not None else found[0][:2]]
    return Banner(
        "plain", place, sentence(f"the largest effect on {result.metric}, {effect:+.4g}, is there")
    )


def _section(result: PatchResult) -> Section:
    return Section(
        title="Where does it lie?",
        what_to_see=(
            f"A cell is what {result.metric} gains when {result.site} of that place is "
            "patched. Pale cells do not matter."
        ),
        figure=result.plot(),
        table=_table(result),
        definition=(
            f"{result.metric} with the cell patched less that without; {_WHAT[result.direction]}. "
            "Normalised: 0 is the corrupted run, 1 the clean one. Means over pairs, bootstrap "
            "intervals over pairs."
        ),
    )


def _table(result: PatchResult) -> Table:
    rows: list[tuple[object, ...]] = []
    for layer, position, head in result.largest(_MOST_ROWS):
        at = (layer, position) if head is None else (layer, position, head)
        ci = None
        if result.ci_low is not None and result.ci_high is not None:
            ci = float(result.ci_low[at]), float(result.ci_high[at])
        normalised = None if result.normalised is None else float(result.normalised[at])
        place = (layer, position, head, result.tokens[position])
        rows.append((*place, float(result.effects[at]), ci, normalised))
    columns = ("layer", "position", "head", "token", "effect", "95 % interval", "normalised")
    return Table(columns=columns, rows=tuple(rows))
