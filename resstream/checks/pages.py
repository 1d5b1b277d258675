"""Writes the documentation of all rules: ``python -m resstream.checks.pages docs/rules``.

What the examples print is put in by ``python docs/outputs.py``, and stays where a rule's page is
otherwise as it was.
"""

import re
import sys
from pathlib import Path

from resstream.checks.explaining import explain, index
from resstream.checks.registry import RULES
from resstream.stream.files import write_file

_EXAMPLE = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)


def main(folder: Path) -> None:
    """One page a rule, and the page that lists them."""
    pages = {"README.md": index()} | {f"{rule.code}.md": explain(rule) for rule in RULES.values()}
    for name, text in pages.items():
        page = folder / name
        if page.is_file() and without_outputs(page.read_text("utf-8")) == text:
            continue
        with write_file(page) as part:
            part.write_text(text, encoding="utf-8")


def without_outputs(page: str) -> str:
    """A page with nothing but what is typed in its examples."""
    return _EXAMPLE.sub(lambda block: f"```console\n{_typed(block[1])}```", page)


def outputs(page: str) -> str:
    """What the examples of a page print."""
    printed = (
        line for block in _EXAMPLE.findall(page) for line in block.splitlines()
        if not _is_typed(line)
    )  # fmt: skip
    return "\n".join(printed)


def _typed(block: str) -> str:
    return "".join(f"{line}\n" for line in block.splitlines() if _is_typed(line))


def _is_typed(line: str) -> bool:
    return line.startswith(("$ ", "> ")) or line == ">"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
