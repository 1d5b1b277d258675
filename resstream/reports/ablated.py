"""What does an ablation show?  Its section on a page."""

from collections.abc import Sequence

from resstream.analysis.ablation_result import AblationEffect, AblationResult
from resstream.figures.marks import Mark, draw_marks
from resstream.reports.page import Section, Table

_WITHOUT = {
    "zero": "nothing is written",
    "mean": "the write's mean over the text takes its place",
    "resample": "the write of another sequence takes its place",
}
_BARS = (
    "A bar is what the loss gains when the write is taken away: above 0 the write was useful, pale "
    "means that the interval holds 0, and orange below 0 that the model is better without it. "
    "Whiskers are 95 % intervals."
)
_HEADS = (
    "A cell is what the loss gains when that attention head's part of the write is taken away: "
    "blue the head was useful, red the model is better without it. The intervals are in the table."
)


def ablation_sections(ablation: AblationResult, marks: Sequence[Mark] = ()) -> tuple[Section, ...]:
    """The bars of all effects (a heatmap of heads), with their table."""
    effects = ablation.effects
    by_head = any(item.head is not None for item in effects)
    kinds = dict.fromkeys(item.kind for item in effects)
    meaning = "; ".join(f"{kind}: {_WITHOUT.get(kind, kind)}" for kind in kinds)
    figure = ablation.plot() if effects else None
    if figure is not None and not by_head:
        draw_marks(figure, marks)
    section = Section(
        title=f"What is each {'head' if by_head else 'write'} worth?",
        what_to_see=_HEADS if by_head else _BARS,
        figure=figure,
        table=Table(
            columns=(
                *("layer", "write", *(["head"] if by_head else [])),
                *("kind", "effect", "95 % interval", "tokens"),
            ),
            rows=tuple(_row(item) for item in effects),
        ),
        definition=(
            "Cross-entropy with the write changed less that of the clean run, in nats per "
            f"predicted token ({meaning}). Bootstrap intervals over documents."
        ),
    )
    return (section,)


def is_harmful(item: AblationEffect) -> bool:
    """Whether the whole interval says that the model is better without the write."""
    return item.ci[1] < 0


def is_unclear(item: AblationEffect) -> bool:
    """Whether the interval holds 0."""
    return item.ci[0] <= 0 <= item.ci[1]


def place_of(item: AblationEffect) -> str:
    """Short name of what was ablated."""
    if len(item.layers) > 1:
        return f"L{item.layers[0]}-{item.layers[-1]} {item.write}"
    return f"L{item.layer} {item.write}" + ("" if item.head is None else f" head {item.head}")


def _row(item: AblationEffect) -> tuple[object, ...]:
    layers = " ".join(map(str, item.layers)) if len(item.layers) > 1 else item.layer
    head = () if item.head is None else (item.head,)
    return layers, item.write, *head, item.kind, item.effect, item.ci, item.n_tokens
