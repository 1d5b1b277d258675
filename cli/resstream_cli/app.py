"""The command `resstream`: joins the verbs and turns what they raise into an exit status."""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn
from warnings import catch_warnings

import typer
from typer.core import TyperCommand, TyperGroup

from resstream import __version__
from resstream.errors import ResstreamError
from resstream_cli.ablate import ablate
from resstream_cli.attribute import attribute
from resstream_cli.bisect import bisect
from resstream_cli.check import check
from resstream_cli.compare import compare
from resstream_cli.experiment import experiment
from resstream_cli.explain import explain
from resstream_cli.inject import inject
from resstream_cli.inspect import inspect
from resstream_cli.lens import lens
from resstream_cli.outputs import asked, say
from resstream_cli.patch import patch
from resstream_cli.profile import profile
from resstream_cli.record import record
from resstream_cli.report import report
from resstream_cli.rules import rules
from resstream_cli.similarity import similarity
from resstream_cli.tables import printable
from resstream_cli.train import train

_UsageError: Any = typer.BadParameter.__base__
"""Typer brings its own click, and shows only this subclass of its usage errors."""
COULD_NOT_RUN = 2
INTERRUPTED = 130
READER_GONE = 141


@contextmanager
def exits() -> Iterator[None]:
    """Print what went wrong outside the program as one line; let a bug keep its traceback."""
    try:
        yield
    except BrokenPipeError:
        # The reader of stdout (`head`, a pager) has gone; nothing may be written any more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(READER_GONE) from None
    except (ResstreamError, OSError) as err:
        _refuse(_one_line(err))
    except _UsageError as err:
        where = err.ctx.command_path if err.ctx else "resstream"
        _refuse(f"{_one_line(err, err.format_message()).rstrip('.')}; see {where} --help")
    except KeyboardInterrupt as err:
        typer.echo("; ".join(["resstream: interrupted", *map(str, err.args)]), err=True)
        raise typer.Exit(INTERRUPTED) from None


def _refuse(line: str) -> NoReturn:
    typer.echo(f"resstream: error: {line}", err=True)
    raise typer.Exit(COULD_NOT_RUN) from None


def _one_line(err: Exception, message: str | None = None) -> str:
    return printable(" ".join((message or str(err)).split())) or type(err).__name__


class _Verbs(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        with exits(), catch_warnings():
            warnings.showwarning = lambda message, *_, **__: say(f"warning: {message}")
            return super().invoke(ctx)


class _Verb(TyperCommand):
    def invoke(self, ctx: Any) -> Any:
        with asked(ctx.info_name, ctx.params):
            return super().invoke(ctx)


app = typer.Typer(
    name="resstream",
    cls=_Verbs,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # so that a bracket is a bracket, and a paragraph one
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _verb in (
    inspect,
    record,
    ablate,
    patch,
    check,
    inject,
    lens,
    attribute,
    similarity,
    profile,
    train,
    experiment,
    report,
    rules,
    explain,
    compare,
    bisect,
):
    app.command(cls=_Verb)(_verb)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"resstream {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Find the layer that is at fault in a transformer checkpoint.

    Exit status: 0 done, nothing found; 1 `check` has findings; 2 the run could not be made.
    """
