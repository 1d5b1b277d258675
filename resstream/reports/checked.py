"""What does a check rest on?  Its sections on a page."""

from collections.abc import Callable, Sequence

import numpy as np

from resstream.checks.report import CheckReport, Experiment, Finding, RemedyTrial, WriteReading
from resstream.figures.evidence import EvidenceRow, evidence_strip
from resstream.figures.intervals import IntervalRow, interval_rows
from resstream.figures.marks import Mark, draw_marks
from resstream.figures.profile import Series, layer_profile
from resstream.reports.page import Section, Table

_MOST_ROWS = 24


def marks_of(report: CheckReport) -> tuple[Mark, ...]:
    """The layers to point at in every figure: what is confirmed, else what is suspect."""
    for status in ("confirmed", "suspect"):
        found = [item for item in report.findings if item.status == status]
        marks = [_mark(item, item.layer) for item in found if item.layer is not None]
        if marks:
            return tuple(marks)
    return ()


def check_sections(report: CheckReport) -> tuple[Section, ...]:
    """Size of the writes, the culprit among all of them, and the experiments."""
    sections: list[Section] = []
    if report.writes:
        sections.append(_size_section(report))
        sections += _culprit_sections(report)
    if report.experiments:
        sections.append(_experiment_section(report.experiments))
    if report.remedies:
        sections.append(_remedy_section(report.remedies))
    return tuple(sections)


def _mark(finding: Finding, layer: int) -> Mark:
    write = finding.write or "layer"
    return Mark(float(layer), f"{write} {layer}: {finding.code}", finding.write)


def _size_section(report: CheckReport) -> Section:
    names = dict.fromkeys(row.write for row in report.writes)
    lines: list[Series] = []
    for name in names:
        rows = [row for row in report.writes if row.write == name]
        at = np.array([float(row.layer) for row in rows])
        lines.append(Series(name, np.array([row.write_norm for row in rows]), at=at))
    figure = layer_profile(lines, value_title="norm of the write (median)", log=True)
    draw_marks(figure, marks_of(report))
    return Section(
        title="How large is each write?",
        what_to_see=(
            "A healthy line is smooth: a point far above its neighbours is a write that pollutes "
            "the stream, a point far below (or a triangle on the lower edge: zero) one that adds "
            "nothing. A marked layer is at fault."
        ),
        figure=figure,
        table=_readings_table(report.writes),
        definition=(
            "Median over tokens, first tokens and massive activations left out, of the norm of "
            "what is added to the stream, in its units. Neighbours: writes of the same kind up to "
            "three blocks away; z is the distance of log norm from theirs in robust standard "
            "deviations; the estimated effect is first order, in nats per token (below 0: harmful)."
        ),
    )


def _readings_table(writes: Sequence[WriteReading]) -> Table:
    columns = (
        "layer", "write", "norm", "neighbours' norm", "z", "relative norm", "cosine",
        "largest channel", "estimated effect",
    )  # fmt: skip
    rows = tuple(
        (
            row.layer, row.write, row.write_norm, row.expected_norm, row.z, row.relative_norm,
            row.cosine, row.channel_share, row.estimated_effect,
        )
        for row in writes
    )  # fmt: skip
    return Table(columns=columns, rows=rows)


def _culprit_sections(report: CheckReport) -> list[Section]:
    """Where the first culprit stands among all writes."""
    marks = marks_of(report)
    if not marks:
        return []
    place = (marks[0].at, marks[0].series)
    own = next((row for row in report.writes if (row.layer, row.write) == place), None)
    if own is None:
        return []
    others = [row for row in report.writes if row is not own]
    strips = [
        _strip(name, read(own), [read(row) for row in others], log=log)
        for name, read, log in _STRIPS
    ]
    drawn = [strip for strip in strips if not np.isnan(strip.value)]
    section = Section(
        title=f"How far does {own.write} {own.layer} stand out?",
        what_to_see=(
            "Each strip is one number: the diamond is the write at fault, the ticks are all other "
            "writes of this model; a diamond away from the ticks is unusual in that respect."
        ),
        figure=evidence_strip(drawn) if drawn else None,
        definition="The same medians as above; a triangle on the left edge is a zero.",
    )
    return [section]


def _ratio(row: WriteReading) -> float:
    return row.write_norm / row.expected_norm if row.expected_norm else float("nan")


_STRIPS: tuple[tuple[str, Callable[[WriteReading], float], bool], ...] = (
    ("norm of the write / its neighbours' norm", _ratio, True),
    ("norm of the write / norm of the stream", lambda row: row.relative_norm, True),
    ("share of the largest channel", lambda row: row.channel_share, False),
    ("estimated effect of taking it away, nats", lambda row: row.estimated_effect, False),
)
"""What a strip shows, how it is read, and whether its axis is logarithmic."""


def _strip(name: str, value: float, others: Sequence[float], *, log: bool) -> EvidenceRow:
    numbers = np.array([other for other in others if np.isfinite(other)], dtype=np.float64)
    return EvidenceRow(name, value, others=numbers, log=log)


def _experiment_section(experiments: Sequence[Experiment]) -> Section:
    measure = experiments[0].measure
    ranked = sorted(
        experiments, key=lambda item: item.effect if measure == "loss" else -item.effect
    )
    shown = ranked[:_MOST_ROWS]
    return Section(
        title="What did the experiments say?",
        what_to_see=_EXPERIMENTS_SEE[measure],
        figure=interval_rows(
            [_interval_row(item) for item in shown], value_title=_EXPERIMENTS_AXIS[measure]
        ),
        table=Table(
            columns=("layer", "write", "change", "effect", "95 % interval", "tokens"),
            rows=tuple(
                (item.layer, item.write, item.change, item.effect, item.ci, item.n_tokens)
                for item in experiments
            ),
        ),
        definition=(
            f"{_EXPERIMENTS_MEAN[measure]} 95 % bootstrap intervals over documents. Among many "
            "experiments some intervals leave 0 by chance (the verdict corrects for that). The "
            f"table lists all {len(experiments)} in the order in which they were made, those after "
            "a confirmed finding with its repair in place."
        ),
    )


def _remedy_section(trials: Sequence[RemedyTrial]) -> Section:
    """The fixes that were tried: loss before and after, and the interval of the change."""
    tokens = "held-out tokens" if trials[0].held_out else "the same tokens that chose the best"
    return Section(
        title="Which fix helps?",
        what_to_see=(
            "Each line is one fix, tried in memory: left of 0 the model is better with it. The "
            "best one of each finding is marked, and is what --export-fix writes."
        ),
        figure=interval_rows(
            [_remedy_row(trial) for trial in trials[:_MOST_ROWS]],
            value_title="loss change, nats per token (left: better)",
        ),
        table=Table(
            columns=(
                "finding", "layer", "write", "fix", "best", "loss before", "loss after", "change",
                "95 % interval",
            ),
            rows=tuple(
                (
                    trial.code, trial.layer if trial.layer >= 0 else None, trial.write,
                    trial.remedy, "best" if trial.best else "", trial.loss_before,
                    trial.loss_after, trial.change, trial.ci,
                )
                for trial in trials
            ),
        ),
        definition=(
            f"Cross-entropy on {trials[0].n_tokens} {tokens}, in nats per predicted token, without "
            "and with the fix, and their difference with a 95 % bootstrap interval over documents. "
            "The fix of a finding is tried with the best ones of the findings before it in place. "
            "Nothing is changed in the checkpoint."
        ),
    )  # fmt: skip


def _remedy_row(trial: RemedyTrial) -> IntervalRow:
    where = f"{trial.write or 'layer'} {trial.layer}" if trial.layer >= 0 else "the model"
    best = " (best)" if trial.best else ""
    name = f"{trial.code}, {where}: {trial.short or trial.remedy}{best}"
    return IntervalRow(name, trial.change, *trial.ci)


_EXPERIMENTS_SEE = {
    "loss": (
        "Each line is one change made to one write: left of 0 the model got better by it, so the "
        "write as it is does harm (orange: the whole interval says so)."
    ),
    "divergence": (
        "Each line is one change made to one write: the further right, the more the model's output "
        "changed by it."
    ),
}
_EXPERIMENTS_AXIS = {
    "loss": "loss change, nats per token (left: better)",
    "divergence": "KL from the clean output, nats per token",
}
_EXPERIMENTS_MEAN = {
    "loss": "Cross-entropy with the change less that without, in nats per predicted token.",
    "divergence": "KL(clean || changed) of the next token, in nats per token.",
}


def _interval_row(item: Experiment) -> IntervalRow:
    name = f"{item.write} {item.layer}: {item.change}"
    alarming = item.measure == "loss" and item.ci[1] < 0
    return IntervalRow(name, item.effect, item.ci[0], item.ci[1], alarming)
