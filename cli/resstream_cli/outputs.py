"""Where a result goes: the data to stdout, and files to the places that were asked for."""

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import typer
from rich.console import Console, RenderableType

from resstream.errors import OutputError
from resstream.stream.files import require_file

if TYPE_CHECKING:
    from resstream.reports.page import Page, Report


class Emitted(Protocol):
    """What a verb yields: every `Result` of the library is one."""

    def to_json(self, *, indent: int | None = None) -> str:
        """Strict JSON with a schema."""
        ...

    def save(self, directory: str | Path) -> Path:
        """Write it into `directory`."""
        ...


@dataclass(frozen=True, slots=True)
class Document:
    """What a verb yields that is no table: JSON alone."""

    data: Any
    """Dataclasses, mappings and plain values."""

    def to_json(self, *, indent: int | None = None) -> str:
        """Strict JSON; NaN and infinities become strings."""
        from resstream.stream.result import to_plain

        return json.dumps(to_plain(self.data), indent=indent, allow_nan=False, ensure_ascii=False)

    def save(self, directory: str | Path) -> Path:
        """Write ``result.json`` into `directory`."""
        from resstream.stream.files import write_directory

        with write_directory(directory) as part:
            (part / "result.json").write_text(self.to_json(indent=1), encoding="utf-8")
        return Path(directory)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """What the options of a verb ask for.

    Making one refuses places that can't be written, before the long work starts.

    Raises:
        OutputError: `out` can't be made, or `html` can't be put where it should be.
    """

    as_json: bool
    out: Path | None = None
    html: Path | None = None

    def __post_init__(self) -> None:
        if self.out is not None:
            if self.out.exists() and not self.out.is_dir():
                raise OutputError(f"cannot write {self.out}: it is a file, not a directory")
            _try_to_write(self.out, below=self.out)
        if self.html is not None:
            require_file(self.html)
            if self.out is not None and self.html.absolute().parent == self.out.absolute():
                raise OutputError(
                    f"--html {self.html} lies in --out, where the page is written as report.html; "
                    "leave --html away, or name another place"
                )
            _try_to_write(self.html, below=self.html.parent)

    def emit(
        self,
        result: Emitted,
        show: Callable[[], RenderableType],
        page: "Callable[[], Page | Report] | None" = None,
    ) -> None:
        """Write the files that were asked for, then print `result` as JSON or as `show` has it.

        The directory of a run holds the result, its page, and what the verb was asked.
        """
        if self.out is not None:
            result.save(self.out)
        if page is not None and (self.html is not None or self.out is not None):
            self._save_page(page())
        if self.out is not None:
            _save_run(self.out)
            say(f"saved in {self.out}")
        if self.as_json:
            typer.echo(result.to_json(indent=2))
        else:
            Console(highlight=False).print(show())

    def _save_page(self, page: "Page | Report") -> None:
        from resstream.reports.page import save_page

        if self.out is not None:
            save_page(self.out / "report.html", page)
        if self.html is not None:
            save_page(self.html, page)
            say(f"page in {self.html}")


@contextmanager
def asked(verb: str, options: Mapping[str, Any]) -> Iterator[None]:
    """Remember what a verb was asked while it runs; `Outputs.emit` writes it beside the result."""
    token = _ASKED.set({"schema": "resstream.run/1", "verb": verb, "options": dict(options)})
    try:
        yield
    finally:
        _ASKED.reset(token)


_ASKED: ContextVar[dict[str, Any]] = ContextVar("asked")


def _save_run(directory: Path) -> None:
    from resstream.stream.files import write_file

    text = json.dumps(_ASKED.get(), indent=1, ensure_ascii=False, default=str)
    with write_file(directory / "run.json") as part:
        part.write_text(text, encoding="utf-8")


def say(message: str) -> None:
    """A message for the person at the keyboard, on stderr."""
    line = " ".join(message.split())
    Console(stderr=True, highlight=False).print(line, style="dim", markup=False, soft_wrap=True)


def _try_to_write(goal: Path, *, below: Path) -> None:
    """Make and drop a temporary file in the nearest folder that exists already."""
    folder = below.absolute()
    while not folder.exists():
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            return
    except OSError as err:
        raise OutputError(f"cannot write {goal}: {err.strerror or err}") from err
