"""What does Trainer say on the way, and to whom?"""

from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback  # noqa: TID253  Trainer takes nothing else

Log = Callable[[int, dict[str, float]], None]
"""Takes a step and what Trainer says of it (``loss``, ``eval_loss``, ``learning_rate``, ...)."""


class LogCallback(TrainerCallback):
    """Hands every entry of Trainer's log on.

    Args:
        log: Takes it.
    """

    def __init__(self, log: Log) -> None:
        self._log = log

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """One entry."""
        del args, control
        if state.is_world_process_zero:
            self._log(state.global_step, kwargs["logs"])
