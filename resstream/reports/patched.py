"""What does a patching sweep show?  Its page."""

from typing import TYPE_CHECKING

from resstream.analysis.attribution_patching import AttributionPatchResult
from resstream.analysis.patch_result import PatchResult
from resstream.analysis.path_patching import PathPatchResult
from resstream.reports.page import Banner, Page, Section, Table, sentence

if TYPE_CHECKING:
    import pandas as pd

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
            *_first_pair(result),
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


def _first_pair(result: PatchResult) -> tuple[tuple[str, str], ...]:
    """What was asked; of several pairs, the first as an example."""
    first = result.pairs[0]
    named = {
        "clean prompt": first.clean_prompt,
        "corrupted prompt": first.corrupted_prompt,
        "answer": repr(first.answer) if first.answer else "",
        "wrong": repr(first.wrong) if first.wrong else "",
    }
    which = "" if len(result.pairs) == 1 else " of the first"
    return tuple((f"{name}{which}", text) for name, text in named.items() if text)


def attribution_patch_page(result: AttributionPatchResult) -> Page:
    """The page of an attribution patch."""
    frame = result.to_dataframe()
    ranked = _largest_rows(frame, f"estimate_{result.metric}")
    return Page(
        kind="attribution patch",
        title=result.model,
        banner=_estimated(ranked, result.metric),
        facts=(("site", result.site), ("direction", result.direction), ("metric", result.metric)),
        sections=(
            Section(
                title="Where may it lie?",
                what_to_see="A strong cell is a candidate; patch it to know.",
                figure=result.plot(),
                table=Table(columns=tuple(frame.columns), rows=ranked),
                definition=(
                    "First-order estimate: gradient of the metric times the change of the "
                    "activation, mean over pairs (Nanda 2023; Kramar et al. 2024)."
                ),
            ),
        ),
        provenance=result.provenance,
    )


def path_patch_page(result: PathPatchResult) -> Page:
    """The page of a path patch."""
    frame = result.to_dataframe()
    ranked = _largest_rows(frame, f"effect_{result.metric}")
    return Page(
        kind="path patch",
        title=result.model,
        banner=_estimated(ranked, result.metric),
        facts=(("direction", result.direction), ("metric", result.metric)),
        sections=(
            Section(
                title="Along which paths does it travel?",
                what_to_see="A row is a write that sends, a column the write (or end) that reads.",
                figure=result.plot(),
                table=Table(columns=tuple(frame.columns), rows=ranked),
                definition=(
                    f"Change of {result.metric} when what one write sends to one later write is "
                    "taken from the other run, all else held; mean over pairs (Wang et al. 2022)."
                ),
            ),
        ),
        provenance=result.provenance,
    )


def _largest_rows(frame: "pd.DataFrame", column: str) -> tuple[tuple[object, ...], ...]:
    chosen = frame.sort_values(column, key=abs, ascending=False, kind="stable")[:_MOST_ROWS]
    return tuple(tuple(row) for row in chosen.astype(object).to_numpy().tolist())


def _estimated(ranked: tuple[tuple[object, ...], ...], metric: str) -> Banner:
    if not ranked:
        return Banner("plain", "Nothing was patched", "No cell was run.")
    *place, effect = ranked[0]
    where = " ".join(str(item) for item in place)
    return Banner("plain", where, sentence(f"the largest, {effect:+.4g} on {metric}, is there"))


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
