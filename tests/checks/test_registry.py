"""Rules: every one explained, codes validated, pages and code the same."""

import re
from pathlib import Path

import pytest

from resstream.checks.explaining import explain, index
from resstream.checks.pages import outputs, without_outputs
from resstream.checks.registry import CODES, RULES, active_codes, rule_named
from resstream.errors import ConfigError

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "resstream" / "checks" / "rules").glob("rs*.py"))


def test_codes_are_in_order_and_well_formed() -> None:
    assert list(CODES) == sorted(CODES)
    assert all(re.fullmatch(r"RS\d{3}", code) for code in CODES)


def test_every_file_is_registered() -> None:
    assert [path.stem[:5].upper() for path in FILES] == list(CODES)


@pytest.mark.parametrize("code", CODES)
def test_every_rule_is_explained(code: str) -> None:
    rule = RULES[code]
    for text in (rule.what, rule.why, rule.detection, rule.traps, rule.fix, rule.source):
        assert len(text) > 10
    page = explain(rule)
    assert page.startswith(f"# {code}: ")
    assert all(f" {line}\n" in page for line in rule.example.split("\n") if line)


@pytest.mark.parametrize("code", CODES)
def test_the_pages_are_made_from_the_rules(code: str) -> None:
    """Run ``python -m resstream.checks.pages docs/rules`` where this fails."""
    page = (ROOT / "docs" / "rules" / f"{code}.md").read_text("utf-8")
    assert without_outputs(page) == explain(RULES[code])


@pytest.mark.parametrize("code", CODES)
def test_the_example_of_a_page_shows_its_finding(code: str) -> None:
    """Run ``python docs/outputs.py docs/rules/CODE.md`` where this fails."""
    page = (ROOT / "docs" / "rules" / f"{code}.md").read_text("utf-8")
    assert re.search(rf"\b{code}\b", outputs(page))


def test_what_is_typed_and_what_is_printed() -> None:
    page = "a\n```console\n$ cat > x <<'END'\n> RS1\n>\n> END\n$ run x\nRS2 found\n```\nb\n"
    assert outputs(page) == "RS2 found"
    assert without_outputs(page) == page.replace("RS2 found\n", "")


def test_the_list_of_pages_is_whole() -> None:
    folder = ROOT / "docs" / "rules"
    assert (folder / "README.md").read_text("utf-8") == index()
    assert {path.stem for path in folder.glob("RS*.md")} == set(CODES)


def test_a_string_is_a_code_and_not_letters() -> None:
    assert active_codes("RS001", None) == {"RS001"}
    assert active_codes("rs101, RS102", None) == {"RS101", "RS102"}
    assert active_codes(["RS2"], "RS203") == {"RS201", "RS202", "RS204", "RS205"}
    assert active_codes(None, None) == set(CODES)


@pytest.mark.parametrize("code", ["RS999", "R", "RS", "", "faint"])
def test_unknown_codes_are_refused_with_the_known(code: str) -> None:
    with pytest.raises(ConfigError, match="there are RS000, RS001"):
        active_codes([code], None)
    with pytest.raises(ConfigError, match="unknown rule"):
        active_codes(None, code or ",")


def test_rules_are_found_by_name() -> None:
    assert rule_named("rs102").code == "RS102"
    for wrong in ("RS1", "RS999", ""):
        with pytest.raises(ConfigError, match="unknown rule"):
            rule_named(wrong)
