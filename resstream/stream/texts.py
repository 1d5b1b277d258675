"""Texts become sequences of token ids, cut to windows of equal length and never padded.

A ``.txt`` file is one document; ``.jsonl`` and ``.parquet`` hold one document a row (field
``text``). Documents are cut into windows of `context` tokens.  Windows begin with whatever the
checkpoint's tokenizer puts first by default (a BOS token or nothing), as the model has been trained
to see.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from resstream.errors import TextError
from resstream.stream.calling import vocabulary_size

if TYPE_CHECKING:
    from resstream.stream.model import StreamModel

Texts = str | Path | Sequence[str] | Sequence[Sequence[int]] | Tensor | np.ndarray | None

_SUFFIXES = (".txt", ".jsonl", ".parquet")
_MIN_WINDOW = 2
_MIN_DOCUMENTS = 8
_CHARACTERS_PER_TOKEN = 16


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences of one length that run together."""

    tokens: Tensor
    """Token ids ``[batch, pos]``."""
    rows: tuple[int, ...]
    """Which sequences of the corpus these are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Token sequences and where they come from."""

    sequences: tuple[Tensor, ...]
    """Token ids, one dimension each."""
    documents: tuple[int, ...]
    """Which independent piece of text each sequence belongs to: the unit of the bootstrap."""
    description: str
    """What the text is, in a phrase."""
    random: bool = False
    """True if the ids are drawn at random because there is no text to be had."""

    @property
    def n_tokens(self) -> int:
        """All tokens."""
        return sum(len(sequence) for sequence in self.sequences)

    @property
    def n_predicted(self) -> int:
        """Tokens that are predicted: all but the first of each sequence."""
        return self.n_tokens - len(self.sequences)

    @property
    def hash(self) -> str:
        """SHA-256 of the token ids, first 16 hex digits."""
        digest = hashlib.sha256()
        for sequence in self.sequences:
            digest.update(sequence.numpy().astype("<i8").tobytes() + b"|")
        return digest.hexdigest()[:16]

    def head(self, n_sequences: int) -> "Corpus":
        """The first `n_sequences` sequences."""
        return Corpus(
            sequences=self.sequences[:n_sequences],
            documents=self.documents[:n_sequences],
            description=f"{self.description}, first {min(n_sequences, len(self.sequences))}",
            random=self.random,
        )

    def every(self, step: int, *, first: int = 0) -> "Corpus":
        """Every `step`-th sequence, from number `first` on."""
        return Corpus(
            sequences=self.sequences[first::step],
            documents=self.documents[first::step],
            description=f"{self.description}, every {step} from {first}",
            random=self.random,
        )

    def batches(self, max_tokens: int = 1024) -> Iterator[Batch]:
        """Batches of equal length, in order of length, of at most `max_tokens` (one at least)."""
        by_length: dict[int, list[int]] = {}
        for row, sequence in enumerate(self.sequences):
            by_length.setdefault(len(sequence), []).append(row)
        for length, rows in by_length.items():
            step = max(1, max_tokens // length)
            for start in range(0, len(rows), step):
                chosen = tuple(rows[start : start + step])
                yield Batch(torch.stack([self.sequences[row] for row in chosen]), chosen)


def read_corpus(
    model: "StreamModel",
    texts: "Texts | Corpus" = None,
    *,
    context: int | None = None,
    max_sequences: int | None = None,
    bos: bool | None = None,
    seed: int = 0,
) -> Corpus:
    """Turn `texts` into sequences for `model`.

    Args:
        model: Gives tokenizer, vocabulary and longest sequence.
        texts: A string, strings, a path (.txt, .jsonl, .parquet), token ids ``[batch, pos]``, or
            None for the text that comes with resstream (random ids if there is no tokenizer).  A
            corpus is returned as it is.
        context: Tokens of one window; 256, or fewer if the model takes fewer.
        max_sequences: How many windows at most; all of them if None.
        bos: Begin windows with the BOS token; None does as the tokenizer does by default.
        seed: Of the random ids.

    Raises:
        TextError: The text can't be read, is empty, or does not suit the model.
    """
    if isinstance(texts, Corpus):
        return texts
    if not model.reads_tokens:
        raise TextError(f"{model.name} does not read tokens; this needs a model of text")
    longest = longest_sequence(model)
    window = min(256, longest) if context is None else context
    if not _MIN_WINDOW <= window <= longest:
        raise TextError(f"context must be in {_MIN_WINDOW}..{longest} tokens, got {window}")
    if max_sequences is not None and max_sequences < 1:
        raise TextError(f"the number of sequences must be at least 1, got {max_sequences}")
    are_ids = isinstance(texts, Tensor | np.ndarray) or _are_ids(texts)
    if bos is not None and (are_ids or model.tokenizer is None):
        reason = "token ids are used as they are" if are_ids else f"{model.name} has no tokenizer"
        raise TextError(f"there is no BOS token to add or leave out: {reason}; leave --bos away")
    if texts is None and model.tokenizer is None:
        return _random_corpus(model, window, max_sequences or 16, seed)
    if are_ids:
        return _from_ids(model, texts, max_sequences, longest)
    documents, description = _read(model, texts)
    return _tokenize(model, documents, description, window, max_sequences, bos)


def longest_sequence(model: "StreamModel") -> int:
    """The most tokens that the model takes, by its configuration."""
    config = getattr(model.module, "config", None)
    for name in ("max_position_embeddings", "n_positions", "max_seq_len"):
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return 1 << 20


def _are_ids(texts: Any) -> bool:
    return (
        isinstance(texts, Sequence)
        and not isinstance(texts, str)
        and len(texts) > 0
        and not isinstance(texts[0], str)
    )


def _refuse_padding(model: "StreamModel", rows: Sequence[Tensor]) -> None:
    """Padding would be read as text: two or more of its tokens at an end of a row."""
    pad = _padding_token(model)
    if pad is None:
        return
    for number, row in enumerate(rows):
        real = (row != pad).nonzero()
        first, last = (int(real[0]), int(real[-1])) if len(real) else (len(row), len(row) - 1)
        count = max(first, len(row) - 1 - last)
        if count > 1:
            raise TextError(
                f"token ids must not be padded, got {count} padding tokens (id {pad}) at an end of "
                f"row {number}; pass rows of different lengths instead"
            )


def _padding_token(model: "StreamModel") -> int | None:
    for owner in (model.tokenizer, getattr(model.module, "config", None)):
        pad = getattr(owner, "pad_token_id", None)
        if isinstance(pad, int):
            return pad
    return None


def _random_corpus(model: "StreamModel", window: int, count: int, seed: int) -> Corpus:
    size = vocabulary_size(model.module) or 2
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, size, (count, window), generator=generator)
    text = f"{count} x {window} random token ids (no tokenizer), seed {seed}"
    return Corpus(
        sequences=tuple(ids), documents=tuple(range(count)), description=text, random=True
    )


def _from_ids(model: "StreamModel", texts: Any, max_sequences: int | None, longest: int) -> Corpus:
    try:
        given = [torch.as_tensor(row).cpu() for row in texts][:max_sequences]
    except (TypeError, ValueError, RuntimeError) as err:
        raise TextError(f"token ids must be whole numbers [batch, pos]: {err}") from err
    if any(row.is_floating_point() for row in given):
        raise TextError("token ids must be whole numbers [batch, pos], got floating ones")
    rows = [row.long() for row in given]
    if not rows or any(row.ndim != 1 or len(row) < _MIN_WINDOW for row in rows):
        raise TextError(
            f"token ids must be [batch, pos] with at least {_MIN_WINDOW} positions, got "
            f"{[tuple(row.shape) for row in rows[:3]]}"
        )
    if max(map(len, rows)) > longest:
        raise TextError(
            f"{model.name} takes at most {longest} tokens, got a sequence of {max(map(len, rows))}"
        )
    size = vocabulary_size(model.module)
    low, high = min(int(row.min()) for row in rows), max(int(row.max()) for row in rows)
    if low < 0 or (size is not None and high >= size):
        raise TextError(f"token ids must be in 0..{(size or 0) - 1}, got {low}..{high}")
    _refuse_padding(model, rows)
    return Corpus(
        sequences=tuple(rows),
        documents=tuple(range(len(rows))),
        description=f"{len(rows)} sequences of token ids",
    )


def _read(model: "StreamModel", texts: Any) -> tuple[list[str], str]:
    if texts is None:
        return _default_text(model)
    if isinstance(texts, Path) or (isinstance(texts, str) and texts.endswith(_SUFFIXES)):
        return read_documents(Path(texts)), Path(texts).name
    if isinstance(texts, str):
        return [texts], "a string"
    return list(texts), f"{len(texts)} strings"


def _default_text(model: "StreamModel") -> tuple[list[str], str]:
    assets = files("resstream.stream") / "assets"
    if model.name.partition(":")[0] == "demo" or _has_vocabulary(model, assets / "demo"):
        with as_file(assets / "demo" / "sample.jsonl") as file:
            return read_documents(file), "held-out stories of the demo"
    return default_documents()


def _has_vocabulary(model: "StreamModel", checkpoint: Traversable) -> bool:
    """True for copies of a checkpoint, such as `resstream inject` writes: same tokenizer."""
    if not hasattr(model.tokenizer, "get_vocab"):
        return False
    plain = json.loads((checkpoint / "tokenizer.json").read_text("utf-8"))
    return model.tokenizer.get_vocab() == plain["model"]["vocab"]


def default_documents() -> tuple[list[str], str]:
    """The text that comes with resstream, as documents, and what it is in a phrase."""
    file = files("resstream.stream") / "assets" / "the_verdict.txt"
    return [file.read_text("utf-8")], "The Verdict (Edith Wharton, 1908)"


def read_documents(path: Path) -> list[str]:
    """The documents of a ``.txt`` (one), ``.jsonl`` or ``.parquet`` file (one a row).

    Raises:
        TextError: The file can't be read, or is of another kind.
    """
    if path.suffix not in _SUFFIXES:
        raise TextError(f"a text file must end in {', '.join(_SUFFIXES)}, got {path}")
    try:
        if path.suffix == ".parquet":
            return _read_parquet(path)
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as err:
        raise TextError(
            f"{path} is not UTF-8: byte 0x{err.object[err.start]:02x} at position {err.start}"
        ) from err
    except OSError as err:
        raise TextError(f"cannot read {path}: {err.strerror or err}") from err
    if path.suffix == ".txt":
        return [text]
    return [
        _row_text(path, number, line)
        for number, line in enumerate(text.split("\n"), 1)
        if line.strip()
    ]


def _row_text(path: Path, number: int, line: str) -> str:
    try:
        row = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as err:
        raise TextError(f"{path}, line {number} is not JSON: {err}") from err
    text = row.get("text") if isinstance(row, dict) else row
    if not isinstance(text, str):
        raise TextError(f"{path}, line {number} must be a string or have a field 'text'")
    return text


def _read_parquet(path: Path) -> list[str]:
    import pyarrow.lib
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path)
    except pyarrow.lib.ArrowInvalid as err:
        raise TextError(f"{path} is not a parquet file: {err}") from err
    if "text" not in table.column_names:
        raise TextError(f"{path} must have a column 'text', it has {table.column_names}")
    values = [value for value in table.column("text").to_pylist() if value is not None]
    if not all(isinstance(value, str) for value in values):
        kind = table.schema.field("text").type
        raise TextError(f"{path}: column 'text' must hold strings, it holds {kind}")
    return [value for value in values if value]


def _tokenize(
    model: "StreamModel",
    documents: list[str],
    description: str,
    window: int,
    max_sequences: int | None,
    bos: bool | None,
) -> Corpus:
    if model.tokenizer is None:
        raise TextError(
            f"{model.name} has no tokenizer; pass token ids, or load(..., tokenizer=...)"
        )
    if not any(text.strip() for text in documents):
        raise TextError(f"the text is empty ({description})")
    for number, text in enumerate(documents):
        if any("\ud800" <= sign <= "\udfff" for sign in text):
            raise TextError(
                f"document {number} of {description} holds half a character (a surrogate)"
            )
    prefix = _prefix(model.tokenizer, bos)
    sequences: list[Tensor] = []
    owners: list[int] = []
    for owner, text in enumerate(documents):
        left = None if max_sequences is None else max_sequences - len(sequences)
        if left == 0:
            break
        windows = _windows(model.tokenizer, text, prefix, window, left)
        sequences += windows
        owners += [owner] * len(windows)
    if not sequences:
        raise TextError(
            f"the text is too short: no sequence has {_MIN_WINDOW} tokens ({description})"
        )
    size, high = vocabulary_size(model.module), max(int(row.max()) for row in sequences)
    if size is not None and high >= size:
        raise TextError(
            f"the tokenizer gives id {high}, the model has 0..{size - 1}; it belongs to another "
            "model"
        )
    units = owners if len(set(owners)) >= _MIN_DOCUMENTS else list(range(len(sequences)))
    begins = (
        f"each begins with {' '.join(model.tokenizer.convert_ids_to_tokens(prefix))}"
        if prefix
        else "no BOS"
    )
    count = f"{len(sequences)} x {max(map(len, sequences))} tokens of {description}, {begins}"
    return Corpus(sequences=tuple(sequences), documents=tuple(units), description=count)


def _windows(
    tokenizer: Any, text: str, prefix: list[int], window: int, count: int | None
) -> list[Tensor]:
    step = window - len(prefix)
    if count is not None:
        text = text[: count * window * _CHARACTERS_PER_TOKEN]
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    pieces = [ids[start : start + step] for start in range(0, len(ids), step)]
    rows = [torch.tensor(prefix + piece) for piece in pieces]
    return [row for row in rows if len(row) >= _MIN_WINDOW][:count]


def _prefix(tokenizer: Any, bos: bool | None) -> list[int]:
    """What stands before the text: as the tokenizer does by default, or as `bos` says."""
    if bos is False:
        return []
    own = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.cls_token_id
    if bos:
        if own is None:
            raise TextError("this tokenizer has no BOS token; leave --bos away")
        return [own]
    plain = tokenizer("a", add_special_tokens=False)["input_ids"]
    default = tokenizer("a")["input_ids"]
    if default == plain or not plain:
        return []
    return default[: default.index(plain[0])] if plain[0] in default else []
