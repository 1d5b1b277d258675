"""The verb `lens`: what would the model say if it stopped after each write?"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.text import Text

import resstream as rs
from resstream.errors import ConfigError
from resstream_cli import options
from resstream_cli.inputs import open_model, open_text
from resstream_cli.outputs import Outputs, say
from resstream_cli.progress import working
from resstream_cli.tables import printable, table

if TYPE_CHECKING:
    from resstream import LensProfileResult, LogitLensResult, TunedLensResult

_MOST_COLUMNS = 7
_COLUMN_WIDTH = 13
"""A token of ten letters at most with its probability: as many as fit are shown."""


def lens(
    model: options.Model,
    *,
    prompt: Annotated[
        str | None, typer.Option("--prompt", help="Read this prompt, token by token.")
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option("--target", help="A token to follow, with its space; may be repeated."),
    ] = None,
    top_k: Annotated[
        int, typer.Option("--top-k", min=1, help="How many of the likeliest tokens to keep.")
    ] = 5,
    tuned: Annotated[
        Path | None,
        typer.Option("--tuned", metavar="DIR", help="Read through this tuned lens."),
    ] = None,
    train: Annotated[
        Path | None,
        typer.Option(
            "--train", metavar="DIR", help="Train a tuned lens on the text, and save it there."
        ),
    ] = None,
    n_tokens: Annotated[
        int | None,
        typer.Option(
            "--train-tokens",
            min=1,
            help="How many tokens to train on; more than the text has go round again.",
            show_default="the text once",
        ),
    ] = None,
    batch_tokens: Annotated[
        int, typer.Option("--batch-tokens", min=2, help="Tokens of one training step.")
    ] = 512,
    text: options.Text = None,
    n_sampled: Annotated[
        int, typer.Option("--sample", min=1, help="How many tokens of a text to read.")
    ] = 512,
    sequences: options.Sequences = 8,
    context: options.Context = None,
    bos: options.Bos = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    dtype: options.Dtype = None,
    as_json: options.Json = False,
    out: options.Out = None,
    html: options.Html = None,
) -> None:
    """Read the stream at every depth through the model's own final norm and head.

    A prompt is shown token by token; of a text, only means and quantiles are kept.  --train makes
    a tuned lens of the text, judged on the part of it that is held out; --tuned reads through one.
    """
    outputs = Outputs(as_json=as_json, out=out, html=html)
    if prompt is not None and text is not None:
        raise ConfigError("--prompt and --text exclude each other; give one of them")
    if train is not None and (prompt is not None or tuned is not None):
        raise ConfigError("--train excludes --prompt and --tuned; read through the lens afterwards")
    if prompt is None and target:
        raise ConfigError("--target needs --prompt")
    stream = open_model(model, device=device, dtype=dtype)
    from resstream.reports.lensed import lens_page, lens_profile_page, tuned_lens_page

    translate = None if tuned is None else rs.TunedLens.load(tuned, stream)
    mid = tuned is None
    if prompt is not None:
        with working("lens"):
            read = rs.logit_lens(
                stream, prompt, targets=target, top_k=top_k, bos=bos, mid=mid, translate=translate
            )
        outputs.emit(read, lambda: _prompt_shown(read), lambda: lens_page(read))
        return
    corpus = open_text(stream, text, sequences=sequences, context=context, bos=bos, seed=seed)
    if train is not None:
        config = rs.TunedLensConfig(n_tokens=n_tokens, batch_tokens=batch_tokens)
        with working("train") as advance:
            made, trained = rs.tuned_lens(
                stream, corpus, config=config, n_sampled=n_sampled, seed=seed, progress=advance
            )
        made.save(train, stream)
        say(f"lens in {train}")
        outputs.emit(trained, lambda: _trained_shown(trained), lambda: tuned_lens_page(trained))
        return
    with working("lens") as advance:
        profile = rs.lens_profile(
            stream,
            corpus,
            n_sampled=n_sampled,
            mid=mid,
            seed=seed,
            translate=translate,
            progress=advance,
        )
    outputs.emit(profile, lambda: _text_shown(profile), lambda: lens_profile_page(profile))


def _prompt_shown(read: "LogitLensResult") -> RenderableType:
    """The likeliest token at each depth, for the last positions of the prompt."""
    length = int((read.tokens[0] >= 0).sum())
    place = max(1, (Console().width - _COLUMN_WIDTH) // _COLUMN_WIDTH)
    shown = range(max(0, length - min(place, _MOST_COLUMNS)), length)
    tokens = read.texts_of(read.tokens[0, shown.start : length])
    headings = ("read after", *(f"{i}\n{text!r}" for i, text in zip(shown, tokens, strict=True)))
    lines = [f"{read.model}: the likeliest next token at each depth, with its probability"]
    lines += list(_followed(read, length - 1))
    rows = list(_cells(read, shown))
    return Group(*(Text(printable(line)) for line in lines), table(headings, rows))


def _cells(read: "LogitLensResult", shown: range) -> Iterator[tuple[object, ...]]:
    for depth in reversed(range(len(read.depths))):
        best = read.texts_of(read.top_tokens[depth, 0, shown.start : shown.stop, 0])
        probs = read.top_probs[depth, 0, shown.start : shown.stop, 0]
        cells = (f"{text!r} {prob:.2f}" for text, prob in zip(best, probs, strict=True))
        yield read.depths[depth], *cells


def _followed(read: "LogitLensResult", last: int) -> Iterator[str]:
    for index, name in enumerate(read.texts_of(read.targets)):
        ranks = read.target_ranks[:, 0, last, index]
        first = next((d for d in range(len(ranks)) if (ranks[d:] == 0).all()), None)
        since = (
            "never the first choice"
            if first is None
            else f"first choice from {read.depths[first]} on"
        )
        prob = read.target_probs[-1, 0, last, index]
        yield f"{name!r} at the end: {since}; probability {prob:.3f}, rank {ranks[-1]}"


def _text_shown(profile: "LensProfileResult") -> RenderableType:
    headings = ("read after", "KL (nats)", "loss (nats)", "entropy (nats)", "agrees")
    names = ("kl_nats", "loss_nats", "entropy_nats")
    columns = [profile.reading(name).tolist() for name in names]
    rows = zip(profile.depths, *columns, profile.agreement[:, 0].tolist(), strict=True)
    facts = [
        f"{profile.model}: {profile.text}",
        f"means over {profile.n_tokens[0]} tokens; first and massive tokens apart",
    ]
    return Group(*(Text(printable(line)) for line in facts), table(headings, list(rows)))


def _trained_shown(trained: "TunedLensResult") -> RenderableType:
    headings = ("read after", "logit lens, KL (nats)", "tuned lens, KL (nats)")
    columns = (trained.logit_kl_nats.tolist(), trained.tuned_kl_nats.tolist())
    facts = [
        f"{trained.model}: {trained.text}",
        f"trained on {trained.n_trained} tokens, judged on {trained.n_held_out} that were held out",
        *(f"mind: {warning}" for warning in trained.warnings),
    ]
    rows = list(zip(trained.depths, *columns, strict=True))
    return Group(*(Text(printable(line)) for line in facts), table(headings, rows))
