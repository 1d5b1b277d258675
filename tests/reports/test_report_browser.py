"""A report of several results in a real browser: drawn, silent, offline, inside the screen."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import resstream as rs
from resstream.reports.page import Page, Report, save_page
from resstream.reports.pages import page_of, report_of
from tests.reports.every_result import MAKERS

if TYPE_CHECKING:
    from tests.reports.conftest import Tab

EVIL = (
    "Once <script>alert(1)</script> <img src=x onerror=alert(2)> \u202eodd\u2028\U0001f642 line\n"
)
UNDRAWN = "document.querySelectorAll('.figure:not(:has(.main-svg))').length"

SHOWN = ("logit_lens", "tuned_lens", "attribute", "similarity", "ranks", "attention", "path_patch")

Show = Callable[[Page | Report], None]


@pytest.fixture
def show(tab: "Tab", tmp_path: Path) -> Show:
    """Saves a page and opens it without a network."""

    def open_page(page: Page | Report) -> None:
        tab.send("Emulation.setEmulatedMedia", features=[])
        tab.open(save_page(tmp_path / "page.html", page))
        tab.wait_for(f"{UNDRAWN} === 0")

    return open_page


@pytest.fixture(scope="module")
def report() -> Report:
    """Several results, the directory of one being hostile."""
    made = [(f"runs/{name}", MAKERS[f"resstream.{name}/1"]()) for name in SHOWN]
    return report_of([(EVIL, made[0][1]), *made[1:]])


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_a_report_of_several_results(
    tab: "Tab", report: Report, show: Show, width: int, dark: bool
) -> None:
    tab.look(width=width, dark=dark)
    show(report)
    tab.look(width=width, dark=dark)
    tab.settle()
    figures = sum(each.figure is not None for part in report.parts for each in part.page.sections)
    assert figures >= len(SHOWN)
    assert tab.evaluate("document.querySelectorAll('.figure .main-svg').length") >= figures
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    wide = "[...document.querySelectorAll('.figure .main-svg')].map(s => s.getAttribute('width'))"
    assert max(float(each) for each in tab.evaluate(wide)) <= width
    assert tab.complaints == []
    assert len(tab.requests) == 1
    assert tab.dialogs == []


def test_the_summary_leads_to_each_result(tab: "Tab", report: Report, show: Show) -> None:
    tab.look(width=1280)
    show(report)
    names = "[...document.querySelectorAll('nav a')].map(a => a.textContent)"
    assert tab.evaluate(names) == [part.page.kind for part in report.parts]
    there = "document.getElementById(a.hash.slice(1)).querySelector('h2').textContent"
    titles = tab.evaluate(f"[...document.querySelectorAll('nav a')].map(a => {there})")
    assert titles == [part.page.title for part in report.parts]
    tab.evaluate("document.querySelector('nav a[href=\"#run-3\"]').click()")
    top = "document.getElementById('run-3').getBoundingClientRect().top"
    assert abs(tab.evaluate(top)) < 40
    text: str = tab.evaluate("document.querySelector('nav').innerText")
    assert "<script>alert(1)</script>" in text
    assert tab.dialogs == []


def test_a_hostile_prompt_is_shown_as_text(tab: "Tab", demo: rs.StreamModel, show: Show) -> None:
    lens = rs.logit_lens(demo, EVIL, targets=[" Mary"])
    parts = rs.direct_logit_attribution(demo, EVIL)
    pages = replace(page_of(lens), title=EVIL), page_of(parts)
    tab.look(width=390)
    for page in pages:
        show(page)
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390
        assert (tab.dialogs, tab.complaints, len(tab.requests)) == ([], [], 1)
        assert tab.evaluate("document.querySelectorAll('main img').length") == 0
    show(pages[0])
    assert "<script>alert(1)</script>" in tab.evaluate("document.querySelector('main').innerText")
    drawn: str = tab.evaluate("document.querySelector('.figure').textContent")
    assert "<|endoftext|>" in drawn  # a token with brackets is text in a figure too
    assert "\u202e" not in drawn
