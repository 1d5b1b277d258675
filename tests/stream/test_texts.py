"""Texts become windows of token ids, and what can't be used is refused in one clear sentence."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from resstream.errors import TextError
from resstream.stream.model import StreamModel
from resstream.stream.texts import read_corpus


def word_tokenizer(*, bos: bool) -> Any:
    """``w7`` is token 7 and ``<s>`` is 1; with `bos` every text begins with it by default."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<s>" if i == 1 else f"w{i}": i for i in range(256)}
    words = Tokenizer(WordLevel(vocabulary, unk_token="w0"))
    words.pre_tokenizer = Whitespace()
    if bos:
        words.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", bos_token="<s>")


@pytest.fixture
def model(tiny_llama: Any) -> StreamModel:
    return StreamModel(tiny_llama(), name="tiny", tokenizer=word_tokenizer(bos=False))


def words(count: int, start: int = 2) -> str:
    return " ".join(f"w{start + i % 200}" for i in range(count))


def test_windows_cover_the_text_without_padding(model: StreamModel) -> None:
    corpus = read_corpus(model, words(25), context=10)
    assert [len(row) for row in corpus.sequences] == [10, 10, 5]
    assert torch.cat(corpus.sequences).tolist() == list(range(2, 27))
    assert (corpus.n_tokens, corpus.n_predicted) == (25, 22)
    assert corpus.documents == (0, 1, 2)


def test_batches_hold_one_length_and_every_row_once(model: StreamModel) -> None:
    corpus = read_corpus(model, [words(n) for n in (4, 9, 4, 9, 4)], context=10)
    batches = list(corpus.batches(max_tokens=8))
    assert sorted(row for batch in batches for row in batch.rows) == list(range(5))
    for batch in batches:
        assert batch.tokens.shape[0] <= max(1, 8 // batch.tokens.shape[1])
        for tokens, row in zip(batch.tokens, batch.rows, strict=True):
            assert torch.equal(tokens, corpus.sequences[row])


def test_every_window_begins_as_the_tokenizer_begins_texts(tiny_llama: Any) -> None:
    model = StreamModel(tiny_llama(), name="tiny", tokenizer=word_tokenizer(bos=True))
    corpus = read_corpus(model, words(18), context=10)
    assert [row[0].item() for row in corpus.sequences] == [1, 1]
    assert "each begins with <s>" in corpus.description
    bare = read_corpus(model, words(18), context=10, bos=False)
    assert bare.sequences[0][0].item() == 2
    assert "no BOS" in bare.description


def test_bos_can_be_asked_for(model: StreamModel) -> None:
    assert read_corpus(model, words(5), bos=True).sequences[0].tolist()[:2] == [1, 2]


def test_documents_are_the_unit_where_there_are_many(model: StreamModel) -> None:
    corpus = read_corpus(model, [words(12)] * 8, context=6)
    assert corpus.documents == tuple(i // 2 for i in range(16))


def test_sequences_are_limited_and_the_hash_sees_them(model: StreamModel) -> None:
    three = read_corpus(model, words(100), context=10, max_sequences=3)
    assert len(three.sequences) == 3
    assert three.hash == read_corpus(model, words(100), context=10, max_sequences=3).hash
    assert three.hash != three.head(2).hash


def test_files(model: StreamModel, tmp_path: Path) -> None:
    import pandas as pd

    (tmp_path / "a.txt").write_text(words(12))
    rows = [{"text": words(5)}, {"text": words(6, start=50)}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    pd.DataFrame(rows).to_parquet(tmp_path / "a.parquet")
    assert read_corpus(model, tmp_path / "a.txt").n_tokens == 12
    for name in ("a.jsonl", "a.parquet"):
        assert [len(row) for row in read_corpus(model, tmp_path / name).sequences] == [5, 6]


def test_token_ids(model: StreamModel) -> None:
    ids = np.arange(12).reshape(2, 6)
    for given in (ids, torch.tensor(ids), ids.tolist()):
        assert torch.equal(torch.stack(read_corpus(model, given).sequences), torch.tensor(ids))


def test_without_a_tokenizer_the_ids_are_random_and_said_to_be(tiny_llama: Any) -> None:
    model = StreamModel(tiny_llama(), name="tiny")
    corpus = read_corpus(model)
    assert corpus.random
    assert "random token ids" in corpus.description
    assert corpus.hash == read_corpus(model).hash != read_corpus(model, seed=1).hash


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("", "the text is empty"),
        ("  \n ", "the text is empty"),
        ("w3", "too short: no sequence has 2 tokens"),
        ([], "the text is empty"),
        ([[1, 2], [3, 999]], r"token ids must be in 0..255, got 1..999"),
        (torch.zeros(2, 1, dtype=torch.long), "at least 2 positions"),
        (torch.zeros(1, 129, dtype=torch.long), "takes at most 128 tokens, got a sequence of 129"),
        (Path("nowhere.txt"), "cannot read nowhere.txt: No such file"),
        (Path("image.png"), r"must end in .txt, .jsonl, .parquet"),
    ],
)
def test_bad_texts(model: StreamModel, texts: Any, message: str) -> None:
    with pytest.raises(TextError, match=message):
        read_corpus(model, texts)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"fine \xff", "is not UTF-8: byte 0xff at position 5"),
        ("a.jsonl", b'{"text": "w1"}\n{oops', "line 2 is not JSON"),
        ("a.jsonl", b'{"body": "w1"}', "line 1 must be a string or have a field 'text'"),
        ("a.parquet", b"no parquet", "is not a parquet file"),
    ],
)
def test_bad_files(
    model: StreamModel, tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TextError, match=message):
        read_corpus(model, tmp_path / name)


def test_a_column_of_numbers_is_no_text(model: StreamModel, tmp_path: Path) -> None:
    import pandas as pd

    pd.DataFrame({"text": [1, 2]}).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(TextError, match="column 'text' must hold strings, it holds int64"):
        read_corpus(model, tmp_path / "a.parquet")


def test_bos_is_not_ignored_in_silence(model: StreamModel, tiny_llama: Any) -> None:
    with pytest.raises(TextError, match="token ids are used as they are"):
        read_corpus(model, [[1, 2]], bos=True)
    with pytest.raises(TextError, match="bare has no tokenizer"):
        read_corpus(StreamModel(tiny_llama(), name="bare"), bos=False)


@pytest.mark.parametrize("context", [1, 129])
def test_bad_context(model: StreamModel, context: int) -> None:
    with pytest.raises(TextError, match=r"context must be in 2..128 tokens"):
        read_corpus(model, words(9), context=context)


def test_a_tokenizer_of_another_model_is_refused(tiny_llama: Any) -> None:
    small = StreamModel(
        tiny_llama(vocab_size=100), name="small", tokenizer=word_tokenizer(bos=False)
    )
    with pytest.raises(TextError, match=r"gives id 201, the model has 0..99"):
        read_corpus(small, words(200))


def test_float_ids_are_refused(model: StreamModel) -> None:
    with pytest.raises(TextError, match="whole numbers"):
        read_corpus(model, torch.rand(2, 5))


def test_no_tokenizer_no_text(tiny_llama: Any) -> None:
    with pytest.raises(TextError, match="has no tokenizer; pass token ids"):
        read_corpus(StreamModel(tiny_llama(), name="tiny"), "some text")
