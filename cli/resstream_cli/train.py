"""The verb `train`: train a native model from YAML, and watch every write while it learns."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from resstream_cli import options
from resstream_cli.outputs import Outputs, say
from resstream_cli.progress import working
from resstream_cli.tables import printable, table

if TYPE_CHECKING:
    from resstream.train.result import TrainingResult

INTERRUPTED = 130
_MOST_ROWS = 12


def train(
    config: Annotated[
        Path,
        typer.Argument(
            metavar="CONFIG", help="A run in YAML; see examples/train.", show_default=False
        ),
    ],
    *,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint of the run.")
    ] = False,
    steps: Annotated[
        int | None,
        typer.Option("--steps", min=1, help="Updates of the weights.", show_default="as in CONFIG"),
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(
            "--text",
            metavar="FILE",
            help="Text to train on: .txt, .jsonl or .parquet.",
            show_default="as in CONFIG",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed", help="Seed of everything that is drawn.", show_default="as in CONFIG"
        ),
    ] = None,
    device: options.Device = None,
    dtype: Annotated[
        options.DtypeName | None,
        typer.Option("--dtype", help="What matrices compute in.", show_default="as in CONFIG"),
    ] = None,
    as_json: options.Json = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="The run.", show_default="output of CONFIG"),
    ] = None,
    html: options.Html = None,
) -> None:
    """Train a native model; the run is a checkpoint that every verb reads.

    Ctrl-C ends it after the step with a checkpoint, from which --resume goes on.
    """
    outputs = Outputs(as_json=as_json, out=out, html=html)
    with working("train"):
        from resstream.train.config import read_config
        from resstream.train.interruption import TrainingInterrupted
        from resstream.train.training import run_training

        run = read_config(
            config,
            training__steps=steps,
            training__seed=seed,
            training__dtype=dtype,
            text__files=None if text is None else [str(text)],
            output=None if out is None else str(out),
        )
        try:
            result = run_training(run, resume=resume, device=device, log=_say_entry)
        except TrainingInterrupted as err:
            typer.echo(f"resstream: {err}", err=True)
            raise typer.Exit(INTERRUPTED) from None
    from resstream.reports.trained import training_page

    outputs = replace(outputs, out=Path(result.directory))
    outputs.emit(result, lambda: _shown(result), lambda: training_page(result))


def _say_entry(step: int, entry: dict[str, float]) -> None:
    """One line a log entry, for the person who waits."""
    if "loss" in entry:
        rate, norm = entry.get("learning_rate", 0.0), float(entry.get("grad_norm", 0.0))
        say(f"step {step}: loss {entry['loss']:.4f}, gradient {norm:.3g}, rate {rate:.3g}")
    if "eval_loss" in entry:
        say(f"step {step}: validation loss {entry['eval_loss']:.4f}")


def _shown(result: "TrainingResult") -> RenderableType:
    facts = [
        f"{result.rule}, {result.n_layers} layers, width {result.d_model}, "
        f"{result.n_parameters:,} parameters: {result.provenance.text}",
        f"{result.n_steps} steps, {result.n_tokens:,} tokens",
    ]
    if result.resumed_from is not None:
        facts.append(f"resumed after step {result.resumed_from}")
    if result.recording is not None and result.recording.first_bad is not None:
        bad = result.recording.first_bad
        facts.append(f"not finite: first at step {bad.step}, {bad.place}")
    frame = result.to_dataframe()
    chosen = frame.iloc[:: max(1, -(-len(frame) // _MOST_ROWS))]
    rows = [tuple(row) for row in chosen.to_numpy().tolist()]
    lines = (Text(printable(line)) for line in facts)
    return Group(*lines, table(("step", "text", "loss, nats per token"), rows))
