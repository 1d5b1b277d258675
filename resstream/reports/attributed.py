"""Which parts speak for the answer?  The page of an attribution."""

import numpy as np

from resstream.analysis.direct_logit_attribution import AttributionResult
from resstream.reports.page import Banner, Page, Section, Table, sentence

_MOST_ROWS = 60


def attribute_page(result: AttributionResult) -> Page:
    """The page of `resstream attribute`."""
    mean, erased = result.contributions.mean(0), np.median(result.erased, axis=0)
    order = np.argsort(-np.abs(mean), kind="stable")
    rows = tuple(
        (result.parts[i], float(mean[i]), None if np.isnan(erased[i]) else float(erased[i]))
        for i in order[:_MOST_ROWS]
    )
    total, explained = result.contributions.sum(1).mean(), result.explained.mean()
    said = (
        f"it adds {mean[order[0]]:+.3g} of {explained:+.4g} logits; the parts sum to {total:+.4g}"
    )
    return Page(
        kind="attribute",
        title=result.model,
        banner=Banner("plain", f"{result.parts[order[0]]} speaks loudest", sentence(said)),
        facts=(
            ("explained", ", ".join(dict.fromkeys(result.question))),
            ("prompts", len(result.prompts)),
            ("largest error of the sum, over the logit", float(result.completeness_error.max())),
            *(("mind", warning) for warning in result.warnings),
        ),
        sections=(
            Section(
                title="What does each part add?",
                what_to_see="To the right: towards the answer. Parts stand in order of execution.",
                figure=result.plot(),
                table=Table(columns=("part", "logits", "erased later"), rows=rows),
                definition=(
                    "Dot product of what a part writes with the direction that the logit reads, "
                    "the final norm held at its statistics of the run. Only the direct path. "
                    "Erased later: share of the write that later writes take away."
                ),
            ),
        ),
        provenance=result.provenance,
    )
