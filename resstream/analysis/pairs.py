"""Prompt pairs for patching: read, tokenized, and refused where patching would mean nothing.

Both prompts of a pair must have equally many tokens, so that position i of one run is position i of
the other: symmetric token replacement (Zhang and Nanda, 2023, arXiv:2309.16042).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from resstream.analysis import noise as noises
from resstream.analysis.pair_files import read_rows
from resstream.analysis.vocabulary import token_texts
from resstream.errors import TextError
from resstream.stream.model import StreamModel
from resstream.stream.texts import longest_sequence

_NAMES = {
    "clean": ("clean", "clean_prefix"),
    "corrupted": ("corrupted", "corrupt", "patch_prefix"),
    "answer": ("answer", "clean_answer"),
    "wrong": ("wrong", "patch_answer"),
    "noise": ("noise",),
    "noised": ("noised",),
}
"""Columns of a pair, with the names that published sets of pairs use for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two prompts that differ in what matters, and the answers they should lead to."""

    clean: str | Sequence[int]
    """The prompt that leads to `answer`; text or token ids."""
    corrupted: str | Sequence[int] | None = None
    """The same with other words in it; None if `noise` corrupts the clean one."""
    answer: str | int | None = None
    """What should follow the clean prompt; a text counts by its first token."""
    wrong: str | int | None = None
    """What should follow the corrupted one."""
    noise: float | None = None
    """Corrupt by Gaussian noise on the embedding, in standard deviations of the embedding."""
    noised: Sequence[int] | None = None
    """Positions that get the noise; all but the first if None."""


@dataclass(frozen=True, slots=True)
class EncodedPair:
    """A pair as token ids."""

    clean: Tensor
    corrupted: Tensor
    answer: int
    """Token id; -1 if there is none."""
    wrong: int
    warnings: tuple[str, ...]
    noise: Float[Tensor, "pos d_model"] | None = None
    """What is added to the embedding of the corrupted run, if that is what corrupts it."""

    @property
    def length(self) -> int:
        """Tokens of each prompt."""
        return len(self.clean)

    @property
    def first_difference(self) -> int:
        """The first position where the runs differ; their length if they do not."""
        unequal = (self.clean != self.corrupted).nonzero()
        if self.noise is not None:
            unequal = self.noise.any(-1).nonzero()
        return int(unequal[0]) if len(unequal) else self.length


Pairs = Pair | Mapping[str, Any] | Sequence[Pair | Mapping[str, Any]] | str | Path


def read_pairs(source: Pairs) -> list[Pair]:
    """Pairs from a file (.csv, .json, .jsonl), from mappings, or as they are.

    Rows need ``clean`` and ``corrupted`` (or ``corrupt``), and ``answer`` and ``wrong`` where the
    metric asks for them.  A JSON file may keep its list under ``prompts`` or ``pairs``.

    Raises:
        TextError: The file can't be read, or a row lacks a field.
    """
    if isinstance(source, Pair):
        return [source]
    if isinstance(source, Mapping):
        return [_from_row(source, "the pair")]
    if isinstance(source, str | Path):
        rows = read_rows(Path(source))
        return [_from_row(row, f"{source}, row {number}") for number, row in enumerate(rows, 1)]
    try:
        several = list(source)
    except TypeError as err:
        raise TextError(
            f"pairs must be a Pair, a mapping, several of them, or a file, got {source!r:.60}"
        ) from err
    pairs = [
        item if isinstance(item, Pair) else _from_row(item, f"pair {number}")
        for number, item in enumerate(several, 1)
    ]
    if not pairs:
        raise TextError("patching needs at least one pair, got none")
    return pairs


def _from_row(row: Any, where: str) -> Pair:
    if not isinstance(row, Mapping):
        raise TextError(f"{where} must have the fields clean and corrupted, got {row!r:.60}")
    found: dict[str, Any] = {}
    for name, spellings in _NAMES.items():
        if name in ("clean", "corrupted") and any(row.get(other) == "" for other in spellings):
            raise TextError(f"{where}: {name} must not be empty")
        value = next((row[other] for other in spellings if row.get(other) not in (None, "")), None)
        if value is None and (name == "clean" or (name == "corrupted" and not row.get("noise"))):
            raise TextError(f"{where} has no field {name!r}; it has {', '.join(map(str, row))}")
        found[name] = value
    return Pair(**found)


def encode_pairs(
    model: StreamModel,
    pairs: Sequence[Pair],
    *,
    needs_answer: bool = True,
    needs_wrong: bool = True,
    bos: bool | None = None,
) -> list[EncodedPair]:
    """Tokenize pairs and check that patching them means something.

    Raises:
        TextError: Lengths differ, an answer is missing, or both answers begin with one token.
    """
    return [
        _encode(model, pair, number, needs_answer or needs_wrong, needs_wrong, bos)
        for number, pair in enumerate(pairs, 1)
    ]


def _encode(
    model: StreamModel,
    pair: Pair,
    number: int,
    needs_answer: bool,
    needs_wrong: bool,
    bos: bool | None,
) -> EncodedPair:
    clean, corrupted, noise = _runs(model, pair, number, bos)
    warnings = [] if noise is None else [f"pair {number}: {noises.WARNING}"]
    answer, wrong = -1, -1
    if needs_answer:
        answer = _answer(model, pair.answer, "answer", number, warnings)
    if needs_wrong:
        wrong = _answer(model, pair.wrong, "wrong", number, warnings)
        if answer == wrong:
            raise TextError(
                f"pair {number}: answer {pair.answer!r} and wrong {pair.wrong!r} begin with the "
                "same token, so their logit difference is always 0; choose others"
            )
    return EncodedPair(clean, corrupted, answer, wrong, tuple(warnings), noise)


def _runs(
    model: StreamModel, pair: Pair, number: int, bos: bool | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Both prompts, and the noise of the corrupted one if it is the clean one with noise."""
    clean = _prompt(model, pair.clean, bos)
    if pair.corrupted is None:
        if pair.noise is None:
            raise TextError(f"pair {number} has neither 'corrupted' nor 'noise'")
        return clean, clean, noises.draw_noise(model, clean, pair.noise, pair.noised, number)
    if pair.noise is not None:
        raise TextError(f"pair {number} has both 'corrupted' and 'noise'; give one of them")
    corrupted = _prompt(model, pair.corrupted, bos)
    _require_equal_lengths(model, clean, corrupted, number)
    return clean, corrupted, None


def _prompt(model: StreamModel, text: str | Sequence[int], bos: bool | None) -> Tensor:
    if not isinstance(text, str):
        ids = _ids(text)
    elif model.tokenizer is None:
        raise TextError(f"{model.name} has no tokenizer; give prompts as token ids")
    else:
        ids = _tokenized(model, _readable(text, "a prompt"), bos)
    longest = longest_sequence(model)
    if len(ids) > longest:
        raise TextError(f"{model.name} takes {longest} tokens, got a prompt of {len(ids)}")
    size = model.spec.d_vocab or 0
    if not ids or not all(0 <= index < size for index in ids):
        raise TextError(f"a prompt must be token ids in 0..{size - 1}, at least one, got {ids[:8]}")
    return torch.tensor(ids)


def _tokenized(model: StreamModel, text: str, bos: bool | None) -> list[int]:
    if bos is None:
        return model.tokenizer(text)["input_ids"]
    first = [model.tokenizer.bos_token_id] if bos else []
    if first == [None]:
        raise TextError("this tokenizer has no BOS token; leave --bos away")
    return first + model.tokenizer(text, add_special_tokens=False)["input_ids"]


def _readable(text: object, name: str) -> str:
    """The text, if it is one that can be written down."""
    if not isinstance(text, str):
        raise TextError(f"{name} must be a text or a token id, got {text!r:.40}")
    try:
        text.encode()
    except UnicodeEncodeError as err:
        raise TextError(f"{name} holds half a character: {text!r:.40}") from err
    return text


def _ids(prompt: object) -> list[int]:
    """Token ids that somebody gave for a prompt."""
    if isinstance(prompt, Sequence) and all(isinstance(item, int) for item in prompt):
        return list(prompt)
    raise TextError(f"a prompt must be a text or a list of token ids, got {str(prompt)[:40]!r}")


def _require_equal_lengths(
    model: StreamModel, clean: Tensor, corrupted: Tensor, number: int
) -> None:
    if len(clean) == len(corrupted):
        return
    both = zip(clean.tolist(), corrupted.tolist(), strict=False)
    shorter = min(len(clean), len(corrupted))
    at = next((i for i, (one, other) in enumerate(both) if one != other), shorter)

    def shown(ids: Tensor) -> str:
        return repr(token_texts(model, [int(ids[at])])[0]) if at < len(ids) else "the end"

    raise TextError(
        f"pair {number}: clean and corrupted must have equally many tokens, got {len(clean)} and "
        f"{len(corrupted)}; they first differ at position {at}, {shown(clean)} against "
        f"{shown(corrupted)}; replace words by words of as many tokens"
    )


def _answer(
    model: StreamModel, given: str | int | None, name: str, number: int, warnings: list[str]
) -> int:
    if given is None:
        raise TextError(f"pair {number} has no {name!r}, which this metric needs")
    if isinstance(given, int) and not isinstance(given, bool):
        if not 0 <= given < (model.spec.d_vocab or 0):
            raise TextError(f"pair {number}: token id {given} of {name!r} is not in the vocabulary")
        return given
    if model.tokenizer is None:
        raise TextError(f"{model.name} has no tokenizer; give {name!r} as a token id")
    given = _readable(given, name)
    ids = model.tokenizer(given, add_special_tokens=False)["input_ids"]
    if not ids:
        raise TextError(f"pair {number}: {name} must not be empty, got {given!r}")
    if len(ids) > 1:
        first = token_texts(model, ids[:1])[0]
        warnings.append(
            f"pair {number}: {name} {given!r} is {len(ids)} tokens; only the first, {first!r}, "
            "is measured"
        )
    spaced = model.tokenizer(" " + given, add_special_tokens=False)["input_ids"]
    if given[0].isalnum() and spaced != ids and len(spaced) <= len(ids):
        warnings.append(
            f"pair {number}: {name} {given!r} has no leading space; within a text the model writes "
            f"{' ' + given!r}, which is another token"
        )
    return int(ids[0])
