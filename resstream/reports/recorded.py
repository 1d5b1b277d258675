"""What does a recording show?  Its sections on a page."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from resstream.figures.marks import Mark, draw_marks
from resstream.recording.online import QUANTILES, Summary
from resstream.recording.result import Recording
from resstream.reports.page import Section, Table
from resstream.shapes import STRATA

_BODY, _SINK = STRATA.index("body"), STRATA.index("sink")
_BAND = (
    "The line is the median over tokens, the band reaches from the 5 % to the 95 % quantile; first "
    "tokens and tokens with massive activations are left out (sink, in the table)."
)


class _Profile(NamedTuple):
    """How one metric is shown."""

    metric: str
    title: str
    what_to_see: str
    definition: str


_PROFILES = (
    _Profile(
        "relative_norm",
        "How large is each write against the stream?",
        "A healthy line is smooth: a write far above its neighbours pollutes the stream, one far "
        "below adds next to nothing.",
        "Norm of what is added to the stream over the norm of the stream it is added to; no unit.",
    ),
    _Profile(
        "cosine",
        "Does a write point along the stream, or against it?",
        "Near 0 a write adds something new; near 1 it makes the stream longer, near -1 it takes "
        "away what is there.",
        "Cosine between the write and the stream it is added to; no unit.",
    ),
    _Profile(
        "channel_share",
        "Does a write go into one channel?",
        "A write that stands near 1 among low neighbours puts nearly all of its size into a single "
        "channel.",
        "Largest squared channel over the squared norm of the write; no unit.",
    ),
    _Profile(
        "survival",
        "How much of a write is left at the end?",
        "At 1 the write is still there when the model reads the answer out; below 0 later writes "
        "have more than undone it.",
        "Dot product of the write and the last stream over the squared norm of the write; no unit.",
    ),
)


def recording_sections(recording: Recording, marks: Sequence[Mark] = ()) -> tuple[Section, ...]:
    """Size of the writes, growth of the stream, then direction, channels and survival."""
    size, *others = (_profile_section(recording, profile, marks) for profile in _PROFILES)
    return (size, _growth_section(recording), *others)


def _profile_section(recording: Recording, profile: _Profile, marks: Sequence[Mark]) -> Section:
    figure = recording.plot(profile.metric)
    draw_marks(figure, marks)
    summary = recording.summary(profile.metric)
    places = zip(recording.layers.tolist(), recording.names, strict=True)
    return Section(
        title=profile.title,
        what_to_see=profile.what_to_see,
        figure=figure,
        table=Table(
            columns=("layer", "write", *_LEVELS),
            rows=tuple((*place, *row) for place, row in zip(places, _levels(summary), strict=True)),
        ),
        definition=f"{profile.definition} {_BAND}",
    )


def _growth_section(recording: Recording) -> Section:
    rows = zip(recording.stream_sites, _levels(recording.stream_norm), strict=True)
    return Section(
        title="How does the stream grow?",
        what_to_see=(
            f"From block to block the norm grows by a factor of {recording.growth:.3g} (a straight "
            f"line on this axis, R² {recording.growth_r2:.2f}); a step is one write that outweighs "
            "all before it."
        ),
        figure=recording.plot("stream_norm"),
        table=Table(
            columns=("point", *_LEVELS), rows=tuple((site, *levels) for site, levels in rows)
        ),
        definition=(
            f"Euclidean norm of the stream of one token, in the units of the stream. {_BAND}"
        ),
    )


_LEVELS = ("5 %", "median", "95 %", "sink, median")


def _levels(summary: Summary) -> list[list[float]]:
    """The numbers under `_LEVELS`, a row a place."""
    body: Float[np.ndarray, "row level"] = summary.quantiles[:, _BODY]
    chosen = body[:, [QUANTILES.index(0.05), QUANTILES.index(0.5), QUANTILES.index(0.95)]]
    return np.column_stack([chosen, summary.median[:, _SINK]]).tolist()
