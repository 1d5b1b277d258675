"""One pass over any amount of text: what does every write do to the stream?"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor

from resstream.errors import ConfigError, TextError
from resstream.recording.activations import ActivationWriter, keep_activations
from resstream.recording.examples import Examples
from resstream.recording.measured import measured, measuring_blocks
from resstream.recording.reading import Reader, Reading
from resstream.recording.result import Recording
from resstream.recording.route import Route
from resstream.recording.totals import Totals
from resstream.stream.model import Frame, StreamModel
from resstream.stream.provenance import provenance_of
from resstream.stream.sites import EMBED, FINAL_NORM, match_sites
from resstream.stream.texts import Batch, Corpus, Texts, read_corpus

AtEnd = Callable[[Batch, Tensor], None]

_BATCH_BYTES = 128 << 20
"""Room for the writes of one batch, which are kept until its last stream is known."""

_BATCH_BYTES_ON_ACCELERATOR = 1 << 30
"""The same where a small batch would leave the device idle."""


def record(  # noqa: PLR0913  (all but the first two are options)
    model: StreamModel,
    texts: Texts | Corpus | Tensor = None,
    *,
    sites: Sequence[str] | None = None,
    keep: str | Path | None = None,
    context: int | None = None,
    max_sequences: int | None = None,
    max_tokens: int | None = None,
    seed: int = 0,
    at_end: AtEnd | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Recording:
    """Record statistics of every write, in one pass and in memory that does not grow with the text.

    Args:
        model: Any stream model.
        texts: What it reads (see `resstream.stream.texts.read_corpus`), or a corpus made of it;
            for a model that reads no tokens a tensor of its inputs.
        sites: Names or globs of sites whose activations are kept on disk; needs `keep`.
        keep: Directory for these activations; read them with
            `resstream.recording.activations.open_activations`.
        context: Tokens of one window.
        max_sequences: How many windows at most.
        max_tokens: Tokens of one batch; by default as many as fit 128 MiB of writes on a CPU and
            1 GiB elsewhere.
        seed: Of the random ids that are read where there is no text to be had.
        at_end: Called with each batch and its last stream ``[batch, pos, d_model]``, so that a loss
            (`StreamModel.readout` of it) needs no run of its own.
        progress: Called after each batch with the sequences done and their total.

    Raises:
        TextError: The text can't be used.
        UnknownSiteError: A name fits no site.
        ConfigError: Only one of `sites` and `keep` is given.
        OutputError: `keep` can't be written.

    Example:
        >>> recording = record(model, "wikitext.txt", max_sequences=16)
        >>> recording.relative_norm.median[:, 0]  # one number a write, without sinks
    """
    if (sites is None) != (keep is None):
        raise ConfigError("activations are kept if both are given: keep=DIRECTORY and sites=[...]")
    if max_tokens is not None and max_tokens < 1:
        raise ConfigError(f"max_tokens must be at least 1, got {max_tokens}")
    chosen = match_sites(sites or (), model.sites)
    corpus = _read(model, texts, context, max_sequences, seed)
    provenance = provenance_of(model, corpus.description, corpus.hash, seed=seed)
    totals = Totals(model.spec)
    done, total = 0, len(corpus.sequences)
    with nullcontext() if keep is None else keep_activations(keep, chosen, provenance) as writer:
        for batch in corpus.batches(max_tokens or _tokens_that_fit(model)):
            reading, stream = _read_batch(model, batch, totals.route, writer)
            totals.take(reading, batch.rows)
            if at_end is not None:
                at_end(batch, stream)
            done += len(batch.rows)
            if progress is not None:
                progress(done, total)
    return totals.recording(provenance, kept=None if keep is None else str(keep))


def _read(
    model: StreamModel,
    texts: Texts | Corpus | Tensor,
    context: int | None,
    max_sequences: int | None,
    seed: int,
) -> Corpus | Examples:
    if model.reads_tokens:
        return read_corpus(model, texts, context=context, max_sequences=max_sequences, seed=seed)
    if not isinstance(texts, Tensor) or not len(texts):
        raise TextError(f"{model.name} does not read tokens; pass a tensor of its inputs")
    inputs = texts[:max_sequences]
    with torch.no_grad():
        return Examples(inputs, model.begin(inputs[:1]).stream.shape[1])


def _tokens_that_fit(model: StreamModel) -> int:
    room = _BATCH_BYTES if model.device.type == "cpu" else _BATCH_BYTES_ON_ACCELERATOR
    size = torch.finfo(model.dtype).bits // 8
    return max(1, room // (len(model.spec.writes) * model.spec.d_model * size))


@torch.no_grad()
def _read_batch(
    model: StreamModel, batch: Batch, route: Route, writer: ActivationWriter | None
) -> tuple[Reading, Tensor]:
    frame = model.begin(batch.tokens)
    blocks = measuring_blocks(model)
    reading = Reading(route, frame.stream, waits=bool(blocks))
    readers = [*reading.readers(), *(writer.readers() if writer else ())]
    by_site: dict[str, list[Reader]] = {}
    for site, reader in readers:
        by_site.setdefault(site, []).append(reader)
    last: list[Tensor] = []
    by_site.setdefault(route.points[-1], []).append(last.append)
    hooks = {site: _in_turn(together) for site, together in by_site.items()}
    with measured(blocks, reading.take):
        if {EMBED, FINAL_NORM} & hooks.keys():
            model.run(batch.tokens, hooks)
        else:
            _run_blocks(model, frame, hooks)
    reading.require_complete()
    if writer is not None:
        writer.close_batch(batch, frame.stream.shape[1])
    return reading, last[-1]


def _in_turn(readers: Sequence[Reader]) -> Reader:
    def read(value: Tensor) -> None:
        for reader in readers:
            reader(value)

    return read


def _run_blocks(model: StreamModel, frame: Frame, hooks: Mapping[str, Reader]) -> None:
    """Run all blocks and leave out the head, which may cost as much as a quarter of them."""
    stream = frame.stream
    with model.hooked(hooks):
        for layer in range(model.spec.n_layers):
            stream = model.run_block(layer, stream, frame)
