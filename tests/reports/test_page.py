"""A page is one safe file, whatever text comes into it."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resstream.errors import OutputError
from resstream.figures.profile import Series, layer_profile
from resstream.reports.page import (
    Banner,
    Page,
    Section,
    Table,
    render_page,
    save_page,
    sentence,
    shown,
)
from resstream.stream.provenance import Provenance

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&lt;\u202eodd\u2028\U0001f642"


def make_page(text: str = "plain") -> Page:
    values = np.array([1.0, 2.0, np.nan])
    section = Section(
        title=text,
        what_to_see=text,
        figure=layer_profile([Series(text, values)], value_title=text),
        table=Table(("layer", text), ((0, text), (1, 2.5), (2, None))),
        definition=text,
    )
    provenance = Provenance(
        model=text,
        model_hash="ab",
        text=text,
        text_hash="cd",
        dtype="float32",
        device="cpu",
        seed=0,
        replay_error=0.0,
        versions={"python": text},
    )
    return Page(
        kind="check",
        title=text,
        banner=Banner("plain", text, text),
        facts=((text, text),),
        sections=(section,),
        provenance=provenance,
    )


class Reader(HTMLParser):
    """Tags, attributes, and the text of the scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._in_script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in_script = tag == "script"
        if self._in_script:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.scripts[-1] += data
        else:
            self.text += data


def test_plotly_is_there_once() -> None:
    assert len(re.findall(r"plotly\.js v\d", render_page(make_page()))) == 1


def test_nothing_is_fetched() -> None:
    page = Reader(render_page(make_page()))
    assert [a for _, a in page.tags if {"src", "href", "srcset", "data"} & set(a)] == []
    assert {tag for tag, _ in page.tags} & {"link", "iframe", "object", "embed", "base"} == set()


def test_only_own_scripts_may_run() -> None:
    page = Reader(render_page(make_page(EVIL)))
    policies = [a["content"] for _, a in page.tags if a.get("http-equiv")]
    allowed = re.findall(r"'sha256-([^']+)'", policies[0] or "")
    data, *scripts = page.scripts
    digests = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    assert digests == allowed
    assert "default-src 'none'" in (policies[0] or "")
    assert json.loads(data)["figures"]


def test_text_from_outside_is_shown_and_never_run() -> None:
    plain, evil = Reader(render_page(make_page())), Reader(render_page(make_page(EVIL)))
    assert [tag for tag, _ in evil.tags] == [tag for tag, _ in plain.tags]
    assert evil.text.count("<script>alert(1)</script>") >= 6


def test_figures_carry_no_template_of_their_own() -> None:
    data: dict[str, Any] = json.loads(Reader(render_page(make_page())).scripts[0])
    assert sorted(data["templates"]) == ["dark", "light"]
    assert "template" not in data["figures"][0]["layout"]


def test_section_without_figure_shows_its_table_open() -> None:
    page = make_page()
    bare = replace(page.sections[0], figure=None)
    tags = Reader(render_page(replace(page, sections=(bare,)))).tags
    assert ("details", {"open": None}) in tags
    assert not [a for _, a in tags if a.get("class") == "figure"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "\N{EN DASH}"),
        (3, "3"),
        (0.000123456, "0.0001235"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        ((-0.1, 0.25), "-0.1 to 0.25"),
        ("a b", "a b"),
    ],
)
def test_cells(value: object, text: str) -> None:
    assert shown(value) == text


def test_sentences() -> None:
    assert sentence("restore it.") == sentence("restore it") == "Restore it."


def test_saving_is_whole_or_not_at_all(tmp_path: Path) -> None:
    goal = save_page(tmp_path / "new" / "page.html", make_page(EVIL))
    assert goal.read_text(encoding="utf-8").startswith("<!doctype html>")
    blocked = tmp_path / "file"
    blocked.write_text("x")
    with pytest.raises(OutputError, match="cannot write"):
        save_page(blocked / "page.html", make_page())
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "new", "page.html"]
