"""Saved results come back as what they were; anything else is one clear error."""

import json
import re
from pathlib import Path

import pytest

import resstream
from resstream.analysis.ablation import AblationResult
from resstream.checks.report import CheckReport
from resstream.errors import ResultError
from resstream.recording.result import Recording
from resstream.reports import pages, results
from resstream.reports.results import load_result


def test_what_was_saved_comes_back(
    tmp_path: Path, checked: CheckReport, recorded: Recording, ablated: AblationResult
) -> None:
    for result in (checked, recorded, ablated):
        loaded = load_result(result.save(tmp_path / type(result).__name__))
        assert type(loaded) is type(result)
        assert loaded.to_json() == result.to_json()


def test_every_kind_of_result_is_known() -> None:
    sources = Path(resstream.__file__).parent.rglob("*.py")
    pattern = re.compile(r'schema: ClassVar\[str\] = "([^"]+)"')
    schemas = {name for path in sources for name in pattern.findall(path.read_text())}
    assert schemas == set(results._KINDS)


def test_table_names_classes_that_have_the_schema(tmp_path: Path) -> None:
    for schema in results._KINDS:
        kind = results._class_of(json.dumps({"schema": schema}), tmp_path)
        assert kind.schema == schema


@pytest.mark.parametrize("place", ["nowhere", "file"])
def test_missing(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ResultError, match=r"no result in .*: it must hold result\.json"):
        load_result(tmp_path / place)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is damaged"),
        (b"[]", "schema must be one of resstream.ablate/1, .*, got None"),
        (b'{"schema": "resstream.ablate/99"}', "got 'resstream.ablate/99'"),
        (b'{"schema": ["x"]}', "schema must be one of"),
        (b'{"schema": "resstream.ablate/1"}', "is damaged: TypeError"),
        (b'{"schema": "resstream.ablate/1", "effects": 3}', "is damaged"),
        (b'{"schema": "resstream.check/1", "unknown": 3}', "is damaged"),
        (b"\xff\xfe", "cannot read"),
        (b"[" * 100_000, "is damaged"),
    ],
)
def test_damaged_or_unknown(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "result.json").write_bytes(content)
    with pytest.raises(ResultError, match=message):
        load_result(tmp_path)


def test_every_kind_of_result_has_a_page() -> None:
    known = {schema.partition("/")[0] for schema in results._KINDS}
    assert set(pages._PAGES) == known
