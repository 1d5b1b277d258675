"""What verbs that run sweeps share: a plan, a journal to resume from, and the memory taken."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from resstream.errors import ConfigError
from resstream_cli.outputs import say

if TYPE_CHECKING:
    from resstream.sweep.journal import Journal

Memory = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        help="What the sweep may take beside the model, such as 4GiB.",
        show_default="half of what is free",
    ),
]
Plan = Annotated[bool, typer.Option("--plan", help="Say what would be computed, and stop.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with what an interrupted run left in --out.")
]


class Planned(Protocol):
    """What every plan tells."""

    @property
    def layer_tokens(self) -> int:
        """Positions that go through a block."""
        ...

    @property
    def naive_layer_tokens(self) -> int:
        """The same if every variant were a whole forward."""
        ...

    @property
    def memory_bytes(self) -> int:
        """The most that it takes, beside the model."""
        ...


def require_place(out: Path | None, *, resume: bool) -> None:
    """Refuse to resume from nowhere.

    Raises:
        ConfigError: `resume` without `out`.
    """
    if resume and out is None:
        raise ConfigError("--resume needs --out, the directory of the run that was interrupted")


def memory_bytes(text: str | None) -> int | None:
    """What ``--memory`` says, in bytes."""
    from resstream.sweep.memory import parse_memory

    return None if text is None else parse_memory(text)


def open_journal(out: Path | None, *, resume: bool) -> "Journal | None":
    """Where finished parts are kept, if there is a directory for results."""
    from resstream.sweep.journal import Journal

    return None if out is None else Journal(out / "unfinished", resume=resume)


@contextmanager
def keeping(journal: "Journal | None") -> Iterator[None]:
    """Say what is kept: after an interruption, and of one before."""
    try:
        yield
    except KeyboardInterrupt:
        if journal is None:
            raise
        raise KeyboardInterrupt("what is done is kept; --resume goes on with it") from None
    if journal is not None and journal.kept:
        parts = "1 part was" if journal.kept == 1 else f"{journal.kept} parts were"
        say(f"{parts} kept from the run before")


def show_plan(first: str, plan: Planned, seconds: float) -> RenderableType:
    """A plan for people."""
    from resstream.sweep.memory import show_bytes

    saved = plan.naive_layer_tokens / max(1, plan.layer_tokens)
    lines = [
        first,
        f"{plan.layer_tokens} layer-tokens; as whole forwards {plan.naive_layer_tokens}, "
        f"{saved:.1f} times as many",
        f"up to {show_bytes(plan.memory_bytes)} beside the model",
        f"about {seconds:.0f} s on this machine",
    ]
    return Group(*map(Text, lines))


def say_peak_memory() -> None:
    """Tell the most memory that this process ever had, the model included."""
    from resstream.sweep.memory import peak_memory, show_bytes

    say(f"peak resident memory {show_bytes(peak_memory())}")
