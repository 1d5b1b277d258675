"""Outputs that are either whole or not there: written beside the goal, renamed when complete."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from resstream.errors import OutputError


def require_file(goal: Path) -> None:
    """Refuse to replace what is no file.

    Raises:
        OutputError: A directory, a device or a pipe is there.
    """
    if goal.exists() and not goal.is_file():
        what = "directory" if goal.is_dir() else "device or a pipe"
        raise OutputError(f"cannot write {goal}: it is a {what}, not a file")


@contextmanager
def write_file(path: str | Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; on success it takes the name `path`.

    Raises:
        OutputError: The place can't be written.
    """
    goal = Path(path)
    part = goal.with_name(f".{goal.name}.{os.getpid()}.part")
    try:
        goal.parent.mkdir(parents=True, exist_ok=True)
        require_file(goal)
        yield part
        part.replace(goal)
    except OSError as err:
        raise OutputError(f"cannot write {goal}: {err.strerror or err}") from err
    finally:
        part.unlink(missing_ok=True) if part.parent.is_dir() else None


@contextmanager
def write_directory(path: str | Path) -> Iterator[Path]:
    """Give an empty temporary directory; on success its files move into `path`, replacing old ones.

    Files of `path` that the new content does not name are left alone.

    Raises:
        OutputError: The place can't be written.
    """
    goal = Path(path)
    part: Path | None = None
    try:
        goal.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{goal.name}.", suffix=".part", dir=goal.parent))
        yield part
        goal.mkdir(exist_ok=True)
        for item in sorted(part.iterdir()):
            target = goal / item.name
            if target.is_dir() and item.is_dir():
                shutil.rmtree(target)
            item.replace(target)  # refused where a directory is in the way of a file
    except OSError as err:
        raise OutputError(f"cannot write {goal}: {err.strerror or err}") from err
    finally:
        if part is not None:
            shutil.rmtree(part, ignore_errors=True)
