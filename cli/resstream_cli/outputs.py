"""Where a result goes: the data to stdout, and files to the places that were asked for."""

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import typer
from rich.console import Console, RenderableType

from resstream.errors import OutputError

if TYPE_CHECKING:
    from resstream.reports.page import Page


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
            if self.html.is_dir():
                raise OutputError(f"cannot write {self.html}: it is a directory, not a file")
            _try_to_write(self.html, below=self.html.parent)

    def emit(
        self,
        result: Emitted,
        show: Callable[[], RenderableType],
        page: "Callable[[], Page] | None" = None,
    ) -> None:
        """Write the files that were asked for, then print `result` as JSON or as `show` has it."""
        if self.html is not None and page is not None:
            from resstream.reports.page import save_page

            save_page(self.html, page())
            say(f"page in {self.html}")
        if self.out is not None:
            result.save(self.out)
            say(f"saved in {self.out}")
        if self.as_json:
            typer.echo(result.to_json(indent=2))
        else:
            Console(highlight=False).print(show())


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
