"""Outputs that are either whole or not there: written beside the goal, renamed when complete."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from resstream.errors import OutputError


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
        if goal.is_dir():
            raise IsADirectoryError(f"{goal} is a directory")
        if goal.exists() and not goal.is_file():
            raise OutputError(f"cannot write {goal}: it is a device or a pipe, not a file")
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
