"""The documentation covers every verb and error, and the commands that it shows can be given."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main

import resstream.errors
from resstream_cli.app import app

DOCS = Path(__file__).parents[1] / "docs"
VERBS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


def shown(page: str) -> list[tuple[str, str]]:
    """The commands of a page, with what is printed beneath each."""
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [
        (command, output)
        for block in blocks
        for command, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
    ]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_a_page_with_its_options(verb: str) -> None:
    text = (DOCS / "verbs" / f"{verb}.md").read_text(encoding="utf-8")
    assert f"<!-- options: {verb} -->" in text
    assert f"({verb}.md)" in (DOCS / "verbs" / "index.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "name", [name for name in vars(resstream.errors) if name.endswith("Error")]
)
def test_every_error_has_a_page(name: str) -> None:
    pages = [path.read_text(encoding="utf-8") for path in (DOCS / "errors").glob("*.md")]
    if name == "ResstreamError":
        assert any(name in page for page in pages)
    else:
        assert any(page.startswith(f"# {name}\n") for page in pages)


@pytest.mark.parametrize("page", [page for page in PAGES if shown(page)])
def test_commands_can_be_given_and_their_output_is_shown(page: str) -> None:
    for command, output in shown(page):
        program, *words = shlex.split(command)
        if program != "resstream":
            continue
        verb, *options = words
        VERBS[verb].make_context(verb, options)  # raises at an option that does not exist
        assert output.strip(), f"run docs/outputs.py: nothing is shown for {command}"


def test_a_command_with_an_unknown_option_would_be_noticed() -> None:
    with pytest.raises(Exception, match="No such option"):
        VERBS["lens"].make_context("lens", ["demo", "--no-such-option"])


def test_every_picture_is_used_and_every_page_is_reachable() -> None:
    texts = "\n".join((DOCS / page).read_text(encoding="utf-8") for page in PAGES)
    texts += (DOCS.parent / "README.md").read_text(encoding="utf-8")
    unused = [path.name for path in (DOCS / "images").iterdir() if path.name not in texts]
    assert unused == []
    nav = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    listed = [page for page in PAGES if page.startswith(("verbs/", "errors/", "api/"))]
    assert [page for page in listed if page not in nav] == []
