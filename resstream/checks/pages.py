"""Writes the documentation of all rules: ``python -m resstream.checks.pages docs/rules``."""

import sys
from pathlib import Path

from resstream.checks.explaining import explain, index
from resstream.checks.registry import RULES
from resstream.stream.files import write_file


def main(folder: Path) -> None:
    """One page a rule, and the page that lists them."""
    pages = {"README.md": index()} | {f"{rule.code}.md": explain(rule) for rule in RULES.values()}
    for name, text in pages.items():
        with write_file(folder / name) as part:
            part.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
