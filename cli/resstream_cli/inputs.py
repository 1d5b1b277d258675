"""From the options of a verb to the model and the text that it works on."""

from pathlib import Path
from typing import TYPE_CHECKING

import resstream as rs
from resstream.errors import ConfigError
from resstream_cli.options import DtypeName
from resstream_cli.progress import working

if TYPE_CHECKING:
    from resstream import StreamModel
    from resstream.stream.texts import Corpus


def open_model(name: str, *, device: str | None, dtype: DtypeName | None) -> "StreamModel":
    """Load a model; see `resstream.load` for what may go wrong."""
    with working(f"load {name}"):
        return rs.load(name, device=device, dtype=dtype)


def open_text(
    model: "StreamModel",
    text: Path | None,
    *,
    sequences: int,
    context: int | None,
    bos: bool | None,
    seed: int,
) -> "Corpus":
    """Cut a text into sequences; see `resstream.stream.texts.read_corpus`."""
    with working("read the text"):
        from resstream.stream.texts import read_corpus

        return read_corpus(
            model, text, context=context, max_sequences=sequences, bos=bos, seed=seed
        )


def layer_numbers(text: str, *, n_layers: int) -> list[int]:
    """Read a list of layers such as ``0,4-7``.

    Raises:
        ConfigError: It is no such list, or the model has no such layer.
    """
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ConfigError(f"layers must be a list such as 0,4-7, got {text!r}")
        end = int(last if dash else first)
        if max(int(first), end) >= n_layers:  # before a range of any length is made
            raise ConfigError(f"layer must be in 0..{n_layers - 1}, got {max(int(first), end)}")
        numbers += range(int(first), end + 1)
    if not numbers:
        raise ConfigError(f"layers must be a list such as 0,4-7, got {text!r}")
    return numbers
