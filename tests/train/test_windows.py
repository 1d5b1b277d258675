"""Is all text read, once, in windows of one length, and does the tokenizer give it back?"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resstream.errors import ConfigError, TextError
from resstream.train.config import BpeTokenizer, BytesTokenizer, SavedTokenizer, Text
from resstream.train.tokenizer import END, make_tokenizer
from resstream.train.windows import Windows, documents_of, encode, make_windows

BYTES = make_tokenizer(BytesTokenizer(), (), n_ctx=8)


@settings(max_examples=30)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_bytes_are_one_token_each_and_come_back(text):
    text = text.replace(END, "")
    ids = encode([text], BYTES)
    assert len(ids) == len(text.encode()) + 1
    assert BYTES.decode(ids[:-1]) == text


def test_the_size_of_a_vocabulary():
    assert len(BYTES) == 257
    documents = ["the cat and the hat and the bat"] * 20
    bpe = make_tokenizer(BpeTokenizer(d_vocab=270), documents, n_ctx=8)
    assert len(bpe) == 270
    assert len(encode(documents[:1], bpe)) < len(encode(documents[:1], BYTES))


def test_saved_tokenizers(tmp_path):
    BYTES.save_pretrained(tmp_path)
    again = make_tokenizer(SavedTokenizer(path=str(tmp_path)), (), n_ctx=8)
    assert np.array_equal(encode(["Zürich"], again), encode(["Zürich"], BYTES))
    with pytest.raises(ConfigError, match=r"tokenizer.path must hold a tokenizer, got '.*none'"):
        make_tokenizer(SavedTokenizer(path=str(tmp_path / "none")), (), n_ctx=8)


@settings(max_examples=30)
@given(st.integers(1, 60), st.integers(1, 9))
def test_windows_hold_all_tokens_in_order(n_tokens, length):
    ids = np.arange(n_tokens, dtype=np.int32)
    windows = Windows(ids, length)
    read = [int(token) for row in windows for token in row["input_ids"]]
    assert read == list(range(n_tokens - n_tokens % length))


def test_the_end_is_held_out():
    text = Text(validation_share=0.25)
    windows, held_out = make_windows(text, ["x" * 79], BYTES, length=8, batch=2)
    assert held_out is not None
    assert (len(windows), len(held_out)) == (8, 2)
    assert make_windows(Text(validation_share=0), ["x" * 79], BYTES, length=8, batch=2)[1] is None


def test_a_validation_text_of_its_own(tmp_path):
    (tmp_path / "own.txt").write_text("y" * 20)
    text = Text(validation=(tmp_path / "own.txt",))
    windows, held_out = make_windows(text, ["x" * 79], BYTES, length=8, batch=2)
    assert held_out is not None
    assert (len(windows), len(held_out)) == (10, 2)


def test_other_text_is_refused():
    windows, _ = make_windows(Text(), ["x" * 79], BYTES, length=8, batch=2)
    same = Text(hash=windows.hash)
    assert make_windows(same, ["x" * 79], BYTES, length=8, batch=2)[0].hash == windows.hash
    with pytest.raises(ConfigError, match=f"text.hash must be .*got '{windows.hash}'"):
        make_windows(same, ["y" * 79], BYTES, length=8, batch=2)


def test_text_that_is_too_short_or_empty(tmp_path):
    with pytest.raises(TextError, match=r"must fill one batch \(11 x 8 tokens\), it has 80"):
        make_windows(Text(), ["x" * 79], BYTES, length=8, batch=11)
    (tmp_path / "empty.txt").write_text(" \n")
    with pytest.raises(TextError, match=r"the text is empty \(empty.txt\)"):
        documents_of((tmp_path / "empty.txt",))
