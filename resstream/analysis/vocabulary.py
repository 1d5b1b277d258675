"""Which token is meant by a text, and which text by a token?"""

from collections.abc import Iterable, Sequence

from resstream.errors import TextError
from resstream.stream.model import StreamModel

_SENTENCE_SPACE = "▁"
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

Target = str | int
"""A token: its text, or its id."""


def token_texts(model: StreamModel, ids: Iterable[int]) -> tuple[str, ...]:
    """The text of each token with its leading space; the id as text if there is no tokenizer."""
    tokenizer = model.tokenizer
    if tokenizer is None:
        return tuple(str(int(index)) for index in ids)
    return tuple(_text(tokenizer, int(index)) for index in ids)


def _text(tokenizer: object, index: int) -> str:
    piece = tokenizer.convert_ids_to_tokens(index)  # type: ignore[attr-defined]
    if piece is None:
        return f"<{index}>"  # models often have more outputs than their tokenizer has tokens
    if piece.startswith(_SENTENCE_SPACE):
        return piece.replace(_SENTENCE_SPACE, " ")  # decoding would drop the leading space
    text = tokenizer.decode([index], clean_up_tokenization_spaces=False)  # type: ignore[attr-defined]
    return piece if _REPLACEMENT in text or not text else text


def token_ids(model: StreamModel, targets: Sequence[Target]) -> tuple[int, ...]:
    """The id of each target.

    Raises:
        TextError: A text is not exactly one token, an id is out of range, or there is no tokenizer.
    """
    return tuple(_token_id(model, target) for target in targets)


def _token_id(model: StreamModel, target: Target) -> int:
    size = model.spec.d_vocab or 0
    if isinstance(target, int):
        if not 0 <= target < size:
            raise TextError(f"a token id must be in 0..{size - 1}, got {target}")
        return target
    if model.tokenizer is None:
        raise TextError(f"{model.name} has no tokenizer: name the token {target!r} by its id")
    ids = model.tokenizer(target, add_special_tokens=False)["input_ids"]
    if len(ids) != 1:
        pieces = list(token_texts(model, ids))
        raise TextError(
            f"a target must be one token, got {target!r}, which is {len(ids)}: {pieces}; "
            "mind the leading space, or pass the first of them"
        )
    return int(ids[0])
