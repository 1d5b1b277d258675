"""What an interrupted sweep keeps: results chunk by chunk, and the plan that they belong to.

The plan is kept with them because the numbers depend on it in the last bit: the same chunks give
the same products, so a sweep that was interrupted ends bitwise as one that was not.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from resstream.errors import ConfigError, OutputError
from resstream.stream.files import write_file

_PLAN = "plan.json"


class Journal:
    """A directory with the results of finished chunks.

    Args:
        directory: Where they are kept.
        resume: Go on with what is there; else what is there is dropped.

    Raises:
        OutputError: The directory can't be written.
    """

    def __init__(self, directory: Path, *, resume: bool) -> None:
        self._directory = directory
        self.kept = 0
        """Parts that were taken from before, so far."""
        if not resume:
            self.remove()
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as err:
            raise OutputError(f"cannot write {directory}: {err.strerror or err}") from err

    def settle(self, plan: dict[str, Any], memory: int) -> int:
        """Keep `plan`, or check that it is the one begun; gives the memory that it was made for.

        Raises:
            ConfigError: Another sweep was begun here.
        """
        path = self._directory / _PLAN
        if not path.is_file():
            with write_file(path) as part:
                part.write_text(json.dumps({**plan, "memory": memory}, indent=1), "utf-8")
            return memory
        try:
            found = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as err:
            raise ConfigError(f"cannot resume: {path} can't be read ({err})") from err
        begun = int(found.pop("memory", memory))
        other = sorted(key for key in {*plan, *found} if plan.get(key) != found.get(key))
        if other:
            raise ConfigError(
                f"cannot resume: {self._directory} was begun with other {', '.join(other)}; "
                "give the same options, or start afresh without --resume"
            )
        return begun

    def get(self, key: str) -> np.ndarray | None:
        """The result of a chunk, if it was finished."""
        path = self._directory / f"{key}.npy"
        try:
            found = np.load(path, allow_pickle=False) if path.is_file() else None
        except (OSError, ValueError):  # damaged: computed again
            return None
        self.kept += found is not None
        return found

    def put(self, key: str, values: np.ndarray) -> None:
        """Keep the result of a chunk."""
        with write_file(self._directory / f"{key}.npy") as part, part.open("wb") as file:
            np.save(file, values)

    def remove(self) -> None:
        """Drop everything; called when the whole result is saved."""
        shutil.rmtree(self._directory, ignore_errors=True)
