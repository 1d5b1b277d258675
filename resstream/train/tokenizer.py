"""Which tokenizer does a run train with?  Bytes, BPE of its own text, or one that was saved."""

from collections.abc import Sequence
from typing import Any

from resstream.errors import ConfigError
from resstream.stream.quiet import quiet
from resstream.train.config import BpeTokenizer, BytesTokenizer, SavedTokenizer, TokenizerConfig

END = "<|endoftext|>"
"""Stands after every document."""


def make_tokenizer(config: TokenizerConfig, documents: Sequence[str], *, n_ctx: int) -> Any:
    """The tokenizer that `config` describes, as transformers has it.

    Args:
        config: Kind and size.
        documents: What BPE is learned from.
        n_ctx: Tokens that the model can take.

    Raises:
        ConfigError: A saved tokenizer can't be loaded, or has no token for the end of a document.
    """
    match config:
        case BytesTokenizer():
            return _own(257, (), n_ctx)
        case BpeTokenizer(d_vocab=d_vocab):
            return _own(d_vocab, documents, n_ctx)
        case SavedTokenizer(path=path):
            return load_tokenizer(path)


def load_tokenizer(path: str) -> Any:
    """A saved tokenizer.

    Raises:
        ConfigError: It can't be loaded, or has no token for the end of a document.
    """
    from transformers import AutoTokenizer

    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(path)
    except Exception as err:  # every kind of tokenizer fails in its own way
        reason = " ".join(str(err).split())[:200]
        raise ConfigError(f"tokenizer.path must hold a tokenizer, got {path!r}: {reason}") from err
    if tokenizer.eos_token_id is None:
        raise ConfigError(f"the tokenizer of {path} must have an EOS token to end documents with")
    return tokenizer


def _own(d_vocab: int, documents: Sequence[str], n_ctx: int) -> Any:
    """Byte-level BPE of `d_vocab` tokens; with 257 there is no room for a merge."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=d_vocab,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[END],
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END,
        model_max_length=n_ctx,
        clean_up_tokenization_spaces=False,
    )
