"""Is a file of pairs read as it was meant, or refused in a sentence?"""

from pathlib import Path

import pytest

from resstream.analysis.pair_files import read_rows
from resstream.errors import TextError

ROW = {"clean": "a, b", "corrupted": "c", "answer": " x", "wrong": " y"}


def written(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.csv", '\ufeffclean, corrupted,answer,wrong\r\n"a, b",c, x, y\r\n'),
        ("p.jsonl", '\ufeff{"clean": "a, b", "corrupted": "c", "answer": " x", "wrong": " y"}\n\n'),
        (
            "p.json",
            '{"pairs": [{"clean": "a, b", "corrupted": "c", "answer": " x", "wrong": " y"}]}',
        ),
    ],
)
def test_marks_of_excel_and_blanks_in_the_header_do_no_harm(
    tmp_path: Path, name: str, text: str
) -> None:
    assert read_rows(written(tmp_path, name, text)) == [ROW]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("p.csv", "clean,clean,wrong\na,b,c\n", "the column 'clean' stands there twice"),
        ("p.csv", "clean,corrupted\na, b,c\n", "row 1 has not as many fields.*in quotes"),
        ("p.csv", "clean,corrupted\na,b\nc\n", "row 2 has not as many fields"),
        ("p.jsonl", '{"clean": "a"}\n{"clean":\n', "line 2: Expecting value"),
        ("p.json", "", "is no readable json: Expecting value"),
        ("p.json", "[]", "must hold a list of pairs, with at least one"),
        ("p.txt", "", "must end in .csv, .json, .jsonl"),
    ],
)
def test_what_would_be_read_as_something_else_is_refused(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    with pytest.raises(TextError, match=said):
        read_rows(written(tmp_path, name, text))


def test_other_encodings_are_named(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_bytes("clean,corrupted\né,b\n".encode("latin-1"))
    with pytest.raises(TextError, match=r"p\.csv is not UTF-8"):
        read_rows(tmp_path / "p.csv")
