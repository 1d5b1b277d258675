"""Which page belongs to a result, and what is on it?"""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from resstream.analysis.ablation_result import AblationResult
from resstream.checks.report import CheckReport
from resstream.recording.result import Recording
from resstream.reports.ablated import ablation_sections, is_harmful, is_unclear, place_of
from resstream.reports.checked import check_sections, marks_of
from resstream.reports.page import Banner, Page, Part, Report, Tone, sentence
from resstream.reports.recorded import recording_sections
from resstream.shapes import STRATA
from resstream.stream.result import Result

_MOST_PLACES = 4
_PAGES = {
    "resstream.ablate": "pages:ablate_page",
    "resstream.attention": "profiled:profile_page",
    "resstream.attribute": "attributed:attribute_page",
    "resstream.attribution_patch": "patched:attribution_patch_page",
    "resstream.check": "pages:check_page",
    "resstream.compare": "compared:compare_page",
    "resstream.experiment": "experimented:experiment_page",
    "resstream.gradients": "profiled:profile_page",
    "resstream.lens_profile": "lensed:lens_profile_page",
    "resstream.logit_lens": "lensed:lens_page",
    "resstream.monitor": "trained:monitor_page",
    "resstream.patch": "patched:patch_page",
    "resstream.path_patch": "patched:path_patch_page",
    "resstream.precision": "profiled:profile_page",
    "resstream.ranks": "profiled:profile_page",
    "resstream.record": "pages:record_page",
    "resstream.similarity": "lensed:similarity_page",
    "resstream.train": "trained:training_page",
    "resstream.tuned_lens": "lensed:tuned_lens_page",
}
"""Schema without its version -> what makes its page, in this room."""

_TONES: tuple[Tone, ...] = ("bad", "open", "good", "plain")
"""The first of these that any page has is the tone of a report."""


def page_of(result: Result) -> Page:
    """The page of any result."""
    module, _, name = _PAGES[result.schema.partition("/")[0]].partition(":")
    return getattr(import_module(f"resstream.reports.{module}"), name)(result)


def report_of(runs: Sequence[tuple[str | Path, Result]]) -> Report:
    """One report of several results, in the order given.

    Args:
        runs: Where each result was saved, and the result.
    """
    parts = tuple(Part(str(place), page_of(result)) for place, result in runs)
    models = tuple(dict.fromkeys(part.page.title for part in parts))
    tones = {part.page.banner.tone for part in parts}
    alarms = [part.page for part in parts if part.page.banner.tone == "bad"]
    number = f"{len(parts)} result{'' if len(parts) == 1 else 's'}"
    said = "; ".join(f"{page.kind} of {page.title}: {page.banner.headline}" for page in alarms)
    return Report(
        title=", ".join(models[:_MOST_PLACES]) + (", ..." if len(models) > _MOST_PLACES else ""),
        banner=Banner(
            next(tone for tone in _TONES if tone in tones),
            f"{number} on {len(models)} model{'' if len(models) == 1 else 's'}",
            sentence(said or "none of them is a finding"),
        ),
        parts=parts,
    )


def check_page(
    report: CheckReport,
    recording: Recording | None = None,
    ablation: AblationResult | None = None,
) -> Page:
    """The page of a check: verdict, findings, and what they rest on.

    Args:
        report: The check.
        recording: Statistics of the same model, shown beneath with the culprits marked.
        ablation: Ablations of the same model, shown likewise.
    """
    marks = marks_of(report)
    sections = check_sections(report)
    if ablation is not None:
        sections += ablation_sections(ablation, marks)
    if recording is not None:
        sections += recording_sections(recording, marks)
    return Page(
        kind="check",
        title=report.model,
        banner=_check_banner(report),
        facts=(
            ("text", report.text),
            ("loss, nats per token", report.base_loss),
            ("writes examined", len(report.writes)),
            ("experiments", len(report.experiments)),
        ),
        findings=report.findings,
        sections=sections,
        provenance=report.provenance,
    )


def ablate_page(ablation: AblationResult) -> Page:
    """The page of an ablation."""
    return Page(
        kind="ablate",
        title=ablation.model,
        banner=_ablate_banner(ablation),
        facts=(("text", ablation.text), ("clean loss, nats per token", ablation.base_loss)),
        sections=ablation_sections(ablation),
        provenance=ablation.provenance,
    )


def record_page(recording: Recording) -> Page:
    """The page of a recording."""
    counts = dict(zip(STRATA, recording.n_tokens.tolist(), strict=True))
    return Page(
        kind="record",
        title=recording.provenance.model,
        banner=_record_banner(recording),
        facts=(
            ("text", recording.text),
            ("sequences", recording.n_sequences),
            *((f"tokens, {name}", count) for name, count in counts.items()),
            ("writes", len(recording.labels)),
        ),
        sections=recording_sections(recording),
        provenance=recording.provenance,
    )


def _check_banner(report: CheckReport) -> Banner:
    if report.verdict == "healthy":
        n_writes, n_experiments = len(report.writes), len(report.experiments)
        rests_on = f"no write is at fault: {n_writes} examined, {n_experiments} experiments made"
        return Banner("good", "Healthy", sentence(rests_on))
    if report.verdict == "inconclusive":
        reason = report.findings[0].statement if report.findings else "nothing could be decided"
        return Banner("open", "Inconclusive", sentence(reason))
    return Banner("bad", _headline(report), sentence(report.findings[0].statement))


def _headline(report: CheckReport) -> str:
    """How many findings, and where the confirmed ones are."""
    places = [
        f"layer {item.layer} {item.write or ''}".strip()
        for item in report.findings
        if item.status == "confirmed" and item.layer is not None
    ]
    number = f"{len(report.findings)} finding{'' if len(report.findings) == 1 else 's'}"
    named = ", ".join(dict.fromkeys(places[:_MOST_PLACES]))
    more = ", ..." if len(places) > _MOST_PLACES else ""
    return f"{number}: {named}{more}" if named else number


def _ablate_banner(ablation: AblationResult) -> Banner:
    effects = ablation.effects
    if not effects:
        return Banner("plain", "Nothing was ablated", "No write was chosen.")
    largest = max(effects, key=lambda item: item.effect)
    harmful = sum(is_harmful(item) for item in effects)
    unclear = sum(is_unclear(item) for item in effects)
    said = (
        f"The most useful is {place_of(largest)}: without it the loss rises by "
        f"{largest.effect:.3g} nats per token. Of {len(effects)} ablations {unclear} have an "
        f"interval that holds 0, and in {harmful} the model is better off."
    )
    return Banner("plain", f"{len(effects)} ablations ({effects[0].kind})", said)


def _record_banner(recording: Recording) -> Banner:
    culprit = recording.first_non_finite
    if culprit is not None:
        where = f"at {culprit.site}, sequence {culprit.sequence}, token {culprit.token}"
        return Banner(
            "bad",
            "Not finite",
            f"The first value is {culprit.value:g} {where}, channel {culprit.channel}.",
        )
    tokens = int(recording.n_tokens.sum())
    said = (
        f"The stream grows by a factor of {recording.growth:.3g} per block; all values are finite."
    )
    return Banner("plain", f"{len(recording.labels)} writes over {tokens} tokens", said)
