"""Does the page of experiments show claim, source, verdict, numbers and figure of each?"""

from resstream.reports.experimented import experiment_page
from resstream.reports.page import render_page
from resstream.reports.pages import page_of
from resstream.train.experiments.experiment import Chart, Measured, Verdict
from resstream.train.experiments.report import ExperimentRecord, ExperimentReport
from resstream.train.experiments.running import report_of


def record(name: str, verdict: Verdict, *, at: float | None = None) -> ExperimentRecord:
    return ExperimentRecord(
        name=name,
        title=f"Is {name} so?",
        claim=f"{name} is <so>.",
        source="Somebody (2020)",
        rows=(1,),
        method="looked at",
        verdict=verdict,
        statement=f"{name} was seen",
        measured=(
            Measured(quantity="loss", at=at, value=2.0, low=1.0, high=3.0, n_seeds=3),
            Measured(quantity="count", at=at, value=float("inf"), low=1.0, high=4.0, n_seeds=0),
        ),
        chart=Chart(value_title="loss", at_title=None if at is None else "depth", log_value=True),
        size="quick",
        seed=0,
        recipe="abc",
        seconds=1.5,
    )


def report(*records: ExperimentRecord) -> ExperimentReport:
    return report_of(records)


SEVERAL = report(
    record("one", "holds"),
    record("two", "does not hold here", at=3.0),
    record("three", "not testable at this size"),
)


def test_every_experiment_has_its_section_and_figure() -> None:
    page = experiment_page(SEVERAL)
    titles = [section.title for section in page.sections]
    assert titles[0] == "All verdicts"
    assert titles[1:] == [
        "✓ Holds: Is one so?",
        "✗ Does not hold here: Is two so?",
        "? Not testable at this size: Is three so?",
    ]
    assert all(section.figure is not None and section.figure.data for section in page.sections)


def test_the_page_says_first_what_is_contradicted_and_what_is_open() -> None:
    banner = experiment_page(SEVERAL).banner
    assert banner.headline == "1 hold, 1 do not"
    assert "1 of 3 claims are contradicted" in banner.sentence
    assert "at this size: three" in banner.sentence


def test_a_section_has_claim_source_method_and_spread() -> None:
    section = experiment_page(SEVERAL).sections[1]
    assert "Claim: one is <so>." in section.what_to_see
    assert "One was seen." in section.what_to_see
    for part in ("Somebody (2020)", "Looked at.", "Median over the seeds", "Name: one"):
        assert part in section.definition
    assert section.table is not None
    assert section.table.rows[0] == ("loss", None, 2.0, 1.0, 3.0, 3)


def test_one_experiment_is_a_page_of_its_own() -> None:
    page = experiment_page(report(record("one", "does not hold here")))
    assert page.title == "Is one so?"
    assert page.banner.headline == "✗ Does not hold here"
    assert len(page.sections) == 1


def test_it_is_rendered_and_escaped_and_known_to_reports() -> None:
    html = render_page(page_of(SEVERAL))
    assert "one is &lt;so&gt;." in html
    assert "one is <so>." not in html
