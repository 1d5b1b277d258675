"""Runs the commands that the pages show, and puts what they print beneath them.

    python docs/outputs.py                      # every page
    python docs/outputs.py docs/verbs/lens.md   # one

In a block ``console`` a line ``$ resstream ...`` is run in a scratch folder that all commands of
one page share; the lines up to the next ``$`` are replaced by its output and its exit status.
Lines behind ``>`` belong to the command before them, such as a file that it writes.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
WIDTH = 100
MOST_LINES = 40
PROGRAMS = ("resstream ", "python ", "cat ")


def refreshed(text: str, folder: Path) -> str:
    """A page with the outputs that its commands have now."""
    return BLOCK.sub(lambda block: f"```console\n{_run_block(block[1], folder)}```", text)


def _run_block(body: str, folder: Path) -> str:
    commands = re.findall(r"^\$ .*\n(?:>.*\n)*", body, re.MULTILINE)
    if not all(command[2:].startswith(PROGRAMS) for command in commands):
        return body
    return "".join(command + _output(_typed(command), folder) for command in commands)


def _typed(command: str) -> str:
    """A command without its prompts."""
    return "\n".join(line[2:] for line in command.splitlines())


def _output(command: str, folder: Path) -> str:
    paths = (str(ROOT), str(ROOT / "cli"), os.environ.get("PYTHONPATH", ""))
    settings = {"COLUMNS": str(WIDTH), "TERM": "dumb", "PYTHONPATH": os.pathsep.join(paths)}
    shell = re.sub(r"^resstream ", f"{sys.executable} -m resstream_cli ", command)
    ended = subprocess.run(
        re.sub(r"^python ", f"{sys.executable} ", shell),
        shell=True,
        cwd=folder,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
    )
    lines = [line.rstrip() for line in ended.stdout.splitlines()]
    refused = [line for line in ended.stderr.splitlines() if line.startswith("resstream: error")]
    if len(lines) > MOST_LINES:
        lines = [*lines[:MOST_LINES], "..."]
    while lines and not lines[-1]:
        lines.pop()
    status = [f"(exit status {ended.returncode})"] if ended.returncode else []
    return "".join(f"{line}\n" for line in (*lines, *refused, *status))


def main(pages: list[Path]) -> None:
    """Refresh `pages`, or all that show commands."""
    for page in pages or sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            changed = refreshed(text, Path(folder))
        if changed != text:
            page.write_text(changed, encoding="utf-8")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
