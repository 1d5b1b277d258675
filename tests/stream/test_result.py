"""Results survive JSON and the disk, NaN included; outputs are whole or not there."""

import json
import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Bool, Float, Int

from resstream.errors import OutputError, ResultError
from resstream.stream.files import write_directory, write_file
from resstream.stream.provenance import Provenance, package_versions
from resstream.stream.result import Result, from_plain, to_plain

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


@dataclass(frozen=True, kw_only=True)
class Part:
    name: str
    value: float
    ci: tuple[float, float] | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Example(Result):
    schema: ClassVar[str] = "resstream.example/1"
    numbers: Float[np.ndarray, "layer pos"]
    counts: Int[np.ndarray, " layer"]
    flags: Bool[np.ndarray, " layer"]
    parts: tuple[Part, ...]
    missing: str | None

    def to_dataframe(self) -> "pd.DataFrame":
        import pandas as pd

        return pd.DataFrame({"count": self.counts})

    def plot(self) -> "go.Figure":
        raise AssertionError("not drawn here")


PROVENANCE = Provenance(
    model="m", model_hash="h", text="t", text_hash="x", dtype="float32", device="cpu", seed=0,
    replay_error=0.0, versions=package_versions(),
)  # fmt: skip


def example() -> Example:
    return Example(
        provenance=PROVENANCE,
        numbers=np.array([[1.0, math.nan], [math.inf, -math.inf]]),
        counts=np.array([3, 4]),
        flags=np.array([True, False]),
        parts=(
            Part(name="<b>ö</b>", value=math.nan, ci=(0.5, math.inf)),
            Part(name="", value=1.0, ci=None),
        ),
        missing=None,
    )  # fmt: skip


def test_json_round_trip_is_strict_and_exact() -> None:
    before = example()
    text = before.to_json()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not strict JSON"))
    after = Example.from_json(text)
    np.testing.assert_array_equal(after.numbers, before.numbers)
    np.testing.assert_array_equal(after.counts, before.counts)
    assert after.counts.dtype.kind == "i"
    assert after.flags.dtype == np.bool_
    assert after.parts[1] == before.parts[1]
    assert math.isnan(after.parts[0].value)
    assert after.parts[0].ci == (0.5, math.inf)
    assert after.provenance == before.provenance
    assert after.missing is None


@given(st.floats(allow_nan=False))
def test_every_float_survives(value: float) -> None:
    assert from_plain(float, json.loads(json.dumps(to_plain(value)))) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "not a result"), ("[]", "got None"), ('{"schema": "resstream.other/1"}', "other/1")],
)
def test_foreign_json_is_refused(text: str, message: str) -> None:
    with pytest.raises(ResultError, match=message):
        Example.from_json(text)


def test_save(tmp_path: Path) -> None:
    example().save(tmp_path / "run")
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        "arrays.safetensors", "result.json", "table.csv", "table.parquet",
    ]  # fmt: skip
    assert list(tmp_path.iterdir()) == [tmp_path / "run"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    goal = tmp_path / "page.html"
    goal.write_text("old")
    with pytest.raises(ZeroDivisionError), write_file(goal) as part:
        part.write_text("half")
        raise ZeroDivisionError
    assert goal.read_text() == "old"
    assert list(tmp_path.iterdir()) == [goal]
    with pytest.raises(ZeroDivisionError), write_directory(tmp_path / "run") as part:
        (part / "a").write_text("half")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == [goal]


def test_unwritable_places(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for writer in (write_file, write_directory):
        opened: Any = writer(tmp_path / "file" / "x")
        with pytest.raises(OutputError, match="cannot write"), opened:
            pass


def test_a_folder_of_the_user_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    theirs = tmp_path / "run" / "result.json" / "notes.md"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("mine")
    with (
        pytest.raises(OutputError, match="cannot write"),
        write_directory(tmp_path / "run") as part,
    ):
        (part / "result.json").write_text("{}")
    assert theirs.read_text() == "mine"


def test_a_directory_keeps_files_that_the_new_content_does_not_name(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.md").write_text("mine")
    with write_directory(tmp_path / "run") as part:
        (part / "result.json").write_text("{}")
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["notes.md", "result.json"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Drawn(Example):
    """An example with a figure."""

    def plot(self) -> "go.Figure":
        import plotly.graph_objects as go

        return go.Figure(go.Scatter(y=self.counts))


@pytest.mark.parametrize(
    ("renderer", "kinds"),
    [
        ("plotly_mimetype", {"application/vnd.plotly.v1+json", "text/html"}),
        ("colab", {"text/html"}),
        ("browser", {"text/html"}),
    ],
)
def test_a_notebook_shows_figure_and_table(
    renderer: str, kinds: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import plotly.io

    monkeypatch.setattr(plotly.io.renderers, "default", renderer)
    result = Drawn(**{field.name: getattr(example(), field.name) for field in fields(Example)})
    bundle = result._repr_mimebundle_()
    assert set(bundle) == kinds
    assert "Plotly.newPlot" in bundle["text/html"]
    assert "<th>count</th>" in bundle["text/html"]
    assert result._repr_html_().count("<table") == 1


def test_arrays_are_there_for_other_programs(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    example().save(tmp_path / "run")
    arrays = load_file(tmp_path / "run" / "arrays.safetensors")
    assert set(arrays) == {"numbers", "counts", "flags"}
    np.testing.assert_array_equal(arrays["numbers"], example().numbers)
