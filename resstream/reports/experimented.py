"""Which claims held?  The page of experiments: claim, source, numbers, figure, verdict."""

from resstream.reports.page import Banner, Page, Section, Table, sentence
from resstream.train.experiments.experiment import Measured
from resstream.train.experiments.report import ExperimentRecord, ExperimentReport

_MARKS = {"holds": "✓", "does not hold here": "✗", "not testable at this size": "?"}


def experiment_page(report: ExperimentReport) -> Page:
    """The page of `resstream experiment`."""
    sections = tuple(_section(record) for record in report.experiments)
    if len(sections) > 1:
        sections = (_overview(report), *sections)
    return Page(
        kind="experiment",
        title=_title(report),
        banner=_banner(report),
        facts=(
            *(report.verdicts().items() if len(report.experiments) > 1 else ()),
            ("seconds in all", sum(record.seconds for record in report.experiments)),
        ),
        sections=sections,
        provenance=report.provenance,
    )


def _title(report: ExperimentReport) -> str:
    if len(report.experiments) == 1:
        return report.experiments[0].title
    return "What holds of residual connections"


def _banner(report: ExperimentReport) -> Banner:
    if len(report.experiments) == 1:
        record = report.experiments[0]
        return Banner("plain", _headline(record), sentence(record.statement))
    counts = report.verdicts()
    wrong = counts["does not hold here"]
    open_ones = [
        record.name
        for record in report.experiments
        if record.verdict == "not testable at this size"
    ]
    said = f"{wrong} of {len(report.experiments)} claims are contradicted by what was measured"
    if open_ones:
        said += f"; {len(open_ones)} can't be tested at this size: {', '.join(open_ones)}"
    return Banner("plain", f"{counts['holds']} hold, {wrong} do not", sentence(said))


def _headline(record: ExperimentRecord) -> str:
    return f"{_MARKS[record.verdict]} {record.verdict.capitalize()}"


def _overview(report: ExperimentReport) -> Section:
    return Section(
        title="All verdicts",
        what_to_see="Each bar counts the experiments with one verdict; the table names them all.",
        figure=report.plot(),
        table=Table(
            columns=("verdict", "experiment", "claim", "what was seen", "seconds"),
            rows=tuple(
                (item.verdict, item.name, item.claim, item.statement, item.seconds)
                for item in report.experiments
            ),
        ),
        definition=(
            "Holds: the numbers are what the claim says they would be, for every seed tried. Does "
            "not hold here: they are not, at these sizes. Not testable at this size: what was "
            "measured can't decide it; the reason is given."
        ),
    )


def _section(record: ExperimentRecord) -> Section:
    return Section(
        title=f"{_headline(record)}: {record.title}",
        what_to_see=f"Claim: {record.claim} Measured: {sentence(record.statement)}",
        figure=record.plot(),
        table=Table(
            columns=("quantity", "at", "median", "least", "greatest", "seeds"),
            rows=tuple(_row(item) for item in record.measured),
        ),
        definition=(
            f"Source: {sentence(record.source)} How: {sentence(record.method)} "
            f"{_SPREAD[any(item.n_seeds for item in record.measured)]} "
            f"Name: {record.name}; {record.seconds:.1f} s, seeds from {record.seed}."
        ),
    )


_SPREAD = {
    True: "Median over the seeds, with the range (of n seeds it holds the median in 1 - 2^(1-n)).",
    False: "Nothing is drawn: the numbers are exact.",
}


def _row(item: Measured) -> tuple[object, ...]:
    return (item.quantity, item.at, item.value, item.low, item.high, item.n_seeds or None)
