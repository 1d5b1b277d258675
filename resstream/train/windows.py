"""How does text become what a step reads?  Documents end to end, cut into windows of one length."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils.data import Dataset

from resstream.errors import ConfigError, TextError
from resstream.stream.texts import default_documents, read_documents
from resstream.train.config import Text


class Windows(Dataset[dict[str, Tensor]]):
    """Windows of one length; no token is left out but those at the very end.

    Args:
        ids: Token ids of all documents.
        length: Tokens of a window.
    """

    def __init__(self, ids: Int[np.ndarray, " token"], length: int) -> None:
        count = len(ids) // length
        self._rows = ids[: count * length].reshape(count, length)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = torch.from_numpy(self._rows[index].astype(np.int64))
        return {"input_ids": row, "labels": row}

    @property
    def hash(self) -> str:
        """SHA-256 of the token ids, first 16 hex digits."""
        return hashlib.sha256(self._rows.astype("<i8").tobytes()).hexdigest()[:16]


def documents_of(files: Sequence[Path] | None) -> tuple[list[str], str]:
    """All documents of the files, and what they are in a phrase.

    Raises:
        TextError: A file can't be read, or there is no text in any.
    """
    if files is None:
        documents, said = default_documents()
    else:
        documents = [text for file in files for text in read_documents(file)]
        said = ", ".join(file.name for file in files)
    if not any(text.strip() for text in documents):
        raise TextError(f"the text is empty ({said})")
    return documents, said


def encode(documents: Sequence[str], tokenizer: Any) -> Int[np.ndarray, " token"]:
    """Token ids of all documents, each with the token for its end."""
    parts: list[np.ndarray] = []
    for text in documents:
        ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        parts.append(np.array([*ids, tokenizer.eos_token_id], dtype=np.int32))
    return np.concatenate(parts)


def make_windows(
    text: Text, documents: Sequence[str], tokenizer: Any, *, length: int, batch: int
) -> tuple[Windows, Windows | None]:
    """Windows to train on, and those to measure on.

    Raises:
        ConfigError: The text is not the one whose hash was given.
        TextError: It is too short for one batch, or a validation text for one window.
    """
    ids = encode(documents, tokenizer)
    if text.validation is not None:
        held_out = Windows(encode(documents_of(text.validation)[0], tokenizer), length)
    else:
        n_held_out = int(text.validation_share * (len(ids) // length)) * length
        ids, tail = ids[: len(ids) - n_held_out], ids[len(ids) - n_held_out :]
        held_out = Windows(tail, length)
    windows = Windows(ids, length)
    if len(windows) < batch:
        raise TextError(
            f"the text must fill one batch ({batch} x {length} tokens), it has {len(ids)} tokens"
        )
    if text.validation is not None and not len(held_out):
        raise TextError(f"the validation text must fill one window of {length} tokens")
    if text.hash not in (None, windows.hash):
        raise ConfigError(f"text.hash must be that of the text, {windows.hash}, got {text.hash!r}")
    return windows, held_out if len(held_out) else None
