"""The pages of a check, an ablation and a recording say what their results say."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from resstream.analysis.ablation import AblationResult
from resstream.checks.report import CheckReport, Finding, RemedyTrial
from resstream.recording.result import Culprit, Recording
from resstream.reports.checked import marks_of
from resstream.reports.page import Page
from resstream.reports.pages import ablate_page, check_page, record_page


def with_status(report: CheckReport, **changes: Any) -> CheckReport:
    return replace(report, findings=tuple(replace(f, **changes) for f in report.findings))


def test_check_names_the_culprit(checked: CheckReport) -> None:
    page = check_page(checked)
    assert page.banner.tone == "bad"
    assert page.banner.headline == "1 finding: layer 2 mlp"
    assert page.findings == checked.findings
    assert [section.title for section in page.sections] == [
        "How large is each write?",
        "How far does mlp 2 stand out?",
        "What did the experiments say?",
        *(["Which fix helps?"] if checked.remedies else []),
    ]


def test_fixes_are_shown_with_their_losses(checked: CheckReport) -> None:
    trial = RemedyTrial(
        code="RS201", layer=2, write="mlp", remedy="multiply w by 0.5", loss_before=2.5,
        loss_after=2.0, change=-0.5, ci=(-0.6, -0.4), n_tokens=321, held_out=True, best=True,
        short="x 0.5",
    )  # fmt: skip
    other = replace(trial, remedy="turn", short="", loss_after=3.0, change=0.5, best=False)
    page = check_page(replace(checked, remedies=(trial, other)))
    section = next(each for each in page.sections if each.title == "Which fix helps?")
    assert section.table is not None
    assert section.table.rows[0][3:] == (
        "multiply w by 0.5", "best", 2.5, 2.0, -0.5, (-0.6, -0.4),
    )  # fmt: skip
    assert "321 held-out tokens" in section.definition
    axis: Any = section.figure
    assert list(axis.layout.yaxis.ticktext) == ["RS201, mlp 2: x 0.5 (best)", "RS201, mlp 2: turn"]
    whole = replace(trial, layer=-1, write=None, held_out=False)
    page = check_page(replace(checked, remedies=(whole,)))
    shown = page.sections[-1]
    assert shown.table is not None and shown.table.rows[0][1] is None
    assert "the same tokens that chose the best" in shown.definition
    none = check_page(replace(checked, remedies=()))
    assert "Which fix helps?" not in [each.title for each in none.sections]


def test_check_page_takes_what_there_is(
    checked: CheckReport, recorded: Recording, ablated: AblationResult
) -> None:
    alone, whole = check_page(checked), check_page(checked, recorded, ablated)
    beneath = [*ablate_page(ablated).sections, *record_page(recorded).sections]
    assert len(whole.sections) == len(alone.sections) + len(beneath)
    marked: Any = whole.sections[len(alone.sections)].figure
    assert [note.text for note in marked.layout.annotations] == ["mlp 2: RS201 ▾"]


def test_healthy_and_inconclusive(checked: CheckReport) -> None:
    healthy = check_page(replace(checked, verdict="healthy", findings=()))
    assert (healthy.banner.tone, healthy.banner.headline) == ("good", "Healthy")
    assert f"{len(checked.writes)} examined" in healthy.banner.sentence
    unsure = with_status(replace(checked, verdict="inconclusive"), status="abstained")
    page = check_page(unsure)
    assert (page.banner.tone, page.banner.headline) == ("open", "Inconclusive")
    assert "stand out" not in " ".join(section.title for section in page.sections)


def test_marks_are_the_confirmed_else_the_suspect(checked: CheckReport) -> None:
    (finding,) = checked.findings
    other = replace(finding, layer=1, status="suspect")
    assert [m.at for m in marks_of(replace(checked, findings=(other, finding)))] == [2.0]
    assert [m.at for m in marks_of(replace(checked, findings=(other,)))] == [1.0]
    assert marks_of(replace(checked, findings=(replace(finding, layer=None),))) == ()
    assert marks_of(with_status(checked, status="abstained")) == ()


def test_many_findings_are_counted(checked: CheckReport) -> None:
    (finding,) = checked.findings
    many = tuple(replace(finding, layer=layer % 4) for layer in range(9))
    page = check_page(replace(checked, findings=many))
    assert page.banner.headline.startswith("9 findings: layer 0 mlp, layer 1 mlp")
    assert page.banner.headline.endswith("...")


def test_report_without_readings_is_still_a_page(checked: CheckReport) -> None:
    """NaN weights: a finding, no experiments, numbers that are not finite."""
    blind = tuple(replace(row, write_norm=np.nan, expected_norm=np.nan) for row in checked.writes)
    page = check_page(replace(checked, writes=blind, experiments=(), remedies=()))
    assert len(page.sections) == 2
    assert check_page(replace(checked, writes=(), experiments=(), remedies=())).sections == ()


def test_ablation_banner_counts(ablated: AblationResult) -> None:
    effects = tuple(
        replace(item, effect=effect, ci=(effect - 0.1, effect + 0.1))
        for item, effect in zip(ablated.effects, [0.5, 0.05, -0.5, 0.3], strict=False)
    )
    page = ablate_page(replace(ablated, effects=effects))
    assert page.banner.headline == "4 ablations (zero)"
    assert "Of 4 ablations 1 have an interval that holds 0, and in 1" in page.banner.sentence
    assert "most useful is L0 attn" in page.banner.sentence
    assert ablate_page(replace(ablated, effects=())).sections[0].figure is None


def test_recording_says_where_it_is_not_finite(recorded: Recording) -> None:
    assert record_page(recorded).banner.tone == "plain"
    culprit = Culprit(
        site="blocks.1.hook_mlp_out", layer=1, write="mlp", sequence=0, token=3, channel=7,
        value=float("inf"),
    )  # fmt: skip
    banner = record_page(replace(recorded, first_non_finite=culprit)).banner
    assert banner.tone == "bad"
    assert "inf at blocks.1.hook_mlp_out, sequence 0, token 3, channel 7" in banner.sentence


@pytest.fixture(params=["check", "ablate", "record"])
def page(
    request: pytest.FixtureRequest,
    checked: CheckReport,
    recorded: Recording,
    ablated: AblationResult,
) -> Page:
    match request.param:
        case "check":
            return check_page(checked, recorded, ablated)
        case "ablate":
            return ablate_page(ablated)
        case _:
            return record_page(recorded)


def test_every_section_explains_itself(page: Page) -> None:
    for section in page.sections:
        assert section.figure is not None
        assert section.what_to_see.endswith(".")
        assert section.definition.endswith(".")
        assert section.table is None or section.table.rows


def test_tables_have_a_cell_a_column(page: Page) -> None:
    for section in page.sections:
        if section.table is not None:
            widths = {len(row) for row in section.table.rows}
            assert widths == {len(section.table.columns)}
            cells = [cell for row in section.table.rows for cell in row]
            assert [c for c in cells if isinstance(c, np.generic)] == []


def test_findings_may_lack_a_place(checked: CheckReport) -> None:
    bare = Finding(
        code="RS000", status="abstained", severity="info", layer=None, write=None, site=None,
        statement="the text is too short", evidence=(), remedy="",
    )  # fmt: skip
    page = check_page(replace(checked, verdict="inconclusive", findings=(bare,)))
    assert page.banner.sentence == "The text is too short."
