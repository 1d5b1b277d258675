"""How does a run end early without losing what it has learned?"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback  # noqa: TID253  Trainer takes nothing else

if TYPE_CHECKING:
    from transformers import Trainer


class TrainingInterrupted(KeyboardInterrupt):
    """A run was interrupted, and a checkpoint of it kept.

    Args:
        step: Steps that are done.
        place: Directory of the run.
    """

    def __init__(self, step: int, place: Path) -> None:
        super().__init__(f"interrupted after step {step}; --resume goes on from the checkpoint")
        self.step = step
        self.place = place


class Interrupts(TrainerCallback):
    """Ends the run, with a checkpoint, after the step in which an interrupt came."""

    def __init__(self) -> None:
        self.came = False
        self.heeded = False
        """True once the run was ended for it."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save and stop, if there was one."""
        del args, kwargs
        if self.came and state.global_step < state.max_steps:
            self.heeded = control.should_save = control.should_training_stop = True


@contextmanager
def heeding_interrupts(trainer: "Trainer") -> Iterator[Interrupts]:
    """Let the first SIGINT or SIGTERM end the run after its step; the second acts as ever.

    Outside of the main thread, where there are no handlers, nothing is changed.
    """
    interrupts = Interrupts()
    trainer.add_callback(interrupts)
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    signals = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in signals}

    def heed(number: int, frame: Any) -> None:
        del frame
        interrupts.came = True
        signal.signal(number, before[signal.Signals(number)])

    for number in signals:
        signal.signal(number, heed)
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
