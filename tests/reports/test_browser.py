"""Pages work in a real browser: drawn, silent, offline, and inside the screen."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from resstream.analysis.ablation import AblationResult
from resstream.checks.report import CheckReport
from resstream.figures.bars import BarGroup, ablation_bars, attribution_bars
from resstream.figures.evidence import EvidenceRow, evidence_strip
from resstream.figures.heatmap import layer_position_heatmap, similarity_matrix
from resstream.figures.intervals import IntervalRow, interval_rows
from resstream.figures.marks import Mark
from resstream.figures.profile import Series, layer_profile, stream_growth
from resstream.recording.result import Recording
from resstream.reports.page import Page, Section, save_page
from resstream.reports.pages import check_page

if TYPE_CHECKING:
    from tests.reports.conftest import Tab

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)> $x$ %{x} \u202eodd\u2028\U0001f642"
PLOT_COLOUR = "getComputedStyle(document.querySelector('.main-svg')).backgroundColor"


@pytest.fixture
def show(tab: "Tab", tmp_path: Path) -> Callable[[Page], None]:
    """Saves a page and opens it without a network."""

    def open_page(page: Page) -> None:
        tab.send("Emulation.setEmulatedMedia", features=[])
        tab.open(save_page(tmp_path / "page.html", page))
        tab.wait_for("document.querySelectorAll('.figure:not(:has(.main-svg))').length === 0")

    return open_page


@pytest.fixture
def short_page(page: Page) -> Page:
    """Enough for what does not depend on the figure."""
    return replace(page, sections=page.sections[:1])


@pytest.fixture
def page(checked: CheckReport, recorded: Recording, ablated: AblationResult) -> Page:
    return check_page(checked, recorded, ablated)


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_page_is_drawn_silent_and_inside_the_screen(
    tab: "Tab", page: Page, show: Callable[[Page], None], width: int, dark: bool
) -> None:
    tab.look(width=width, dark=dark)
    show(page)
    tab.look(width=width, dark=dark)
    tab.settle()
    assert tab.evaluate("document.querySelectorAll('.figure .main-svg').length") >= len(
        page.sections
    )
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    wide = "[...document.querySelectorAll('.figure .main-svg')].map(s => s.getAttribute('width'))"
    assert max(float(w) for w in tab.evaluate(wide)) <= width
    assert tab.complaints == []
    assert len(tab.requests) == 1


def test_figures_follow_the_colour_scheme(
    tab: "Tab", short_page: Page, show: Callable[[Page], None]
) -> None:
    tab.look(width=1280)
    show(short_page)
    assert tab.evaluate(PLOT_COLOUR) == "rgb(255, 255, 255)"
    tab.look(width=1280, dark=True)
    tab.wait_for(f"{PLOT_COLOUR} === 'rgb(23, 27, 33)'")
    assert tab.complaints == []


def test_page_prints_and_recovers(
    tab: "Tab", short_page: Page, show: Callable[[Page], None]
) -> None:
    tab.look(width=1280)
    show(short_page)
    width = "document.querySelector('.figure .main-svg').getAttribute('width')"
    before = tab.evaluate(width)
    tab.evaluate("addEventListener('beforeprint', () => window.paper = " + width + "), 0")
    assert tab.printed().startswith(b"%PDF")
    assert tab.evaluate("window.paper") == "680"
    tab.wait_for(f"{width} === '{before}'")
    assert tab.complaints == []


def test_text_from_outside_is_shown_and_never_run(
    tab: "Tab", page: Page, show: Callable[[Page], None]
) -> None:
    evil = replace(
        page,
        title=EVIL,
        facts=((EVIL, EVIL),),
        findings=tuple(replace(item, statement=EVIL, remedy=EVIL) for item in page.findings),
        sections=(replace(gallery()["evil"], title=EVIL, what_to_see=EVIL, definition=EVIL),),
    )
    tab.look(width=1280)
    show(evil)
    text: str = tab.evaluate("document.body.innerText")
    assert text.count("<script>alert(1)</script>") >= 5
    drawn: str = tab.evaluate("document.querySelector('.figure').textContent")
    assert "<script>alert(1)</script>" in drawn
    assert "\\u202eodd" in drawn
    assert tab.evaluate("document.querySelectorAll('main img').length") == 0
    assert (tab.dialogs, tab.complaints, len(tab.requests)) == ([], [], 1)


def section(figure: Any) -> Section:
    return Section(title="t", what_to_see="s.", figure=figure, definition="d.")


def gallery() -> dict[str, Section]:
    """One of each figure, at the largest size that is promised, and one with hostile labels."""
    rng = np.random.default_rng(0)
    size = np.exp(rng.normal(size=100))
    size[40], size[60] = 0.0, np.nan
    line = Series("attn", size, low=size / 2, high=size * 2)
    group = BarGroup("mlp", np.arange(100), size - 1, size - 1.2, size - 0.8)
    labels = [f"{EVIL} {index}" for index in range(100)]
    marks = [Mark(40, EVIL, "attn"), Mark(99, "end")]
    heat = rng.normal(size=(100, 500))
    figures = {
        "profile": layer_profile([line], value_title="norm", log=True, marks=marks),
        "growth": stream_growth([line, Series("sink", size, aside=True)], title="growth"),
        "bars": ablation_bars([group], marks=marks),
        "attribution": attribution_bars(labels, heat[0, :100], value_title=EVIL),
        "heatmap": layer_position_heatmap(heat, ["x"] * 500, value_title="v", diverging=True),
        "evil": layer_position_heatmap(heat[:3, :1], [EVIL], value_title=EVIL, diverging=False),
        "similarity": similarity_matrix(np.corrcoef(heat), labels),
        "strip": evidence_strip([EvidenceRow(EVIL, 0.0, 1.0, None, heat[0], log=True)]),
        "intervals": interval_rows([IntervalRow(EVIL, -1.0, -2.0, 1.0)], value_title="v"),
    }
    return {name: section(figure) for name, figure in figures.items()}


def test_plotly_knows_every_attribute(tab: "Tab", page: Page, show: Callable[[Page], None]) -> None:
    """By its own check, which knows neither packed arrays (replaced here) nor a colour axis."""
    sections = gallery()
    tab.look(width=390)
    show(replace(page, findings=(), sections=tuple(sections.values())))
    found = tab.evaluate(
        "JSON.parse(document.getElementById('figures').textContent,"
        "(_, v) => v?.bdata ? (v.shape ? [[0]] : [0]) : v)"
        ".figures.map(f => (Plotly.validate(f.data, f.layout) || []).map(e => e.msg)"
        ".filter(m => !m.endsWith('key coloraxis is set to an invalid value (coloraxis)')))"
    )
    assert dict(zip(sections, found, strict=True)) == {name: [] for name in sections}
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    assert tab.complaints == []
