"""The base of every result: a frozen dataclass of host arrays that can be saved and shown.

A result knows how to become a tidy table and a figure; how it is written to disk and to JSON is the
same for all and stands here once.  JSON is strict: NaN and infinities are the strings ``"nan"``,
``"inf"`` and ``"-inf"``, so that a diagnosis tool can report them.
"""

import dataclasses
import json
import math
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from resstream.errors import ResultError
from resstream.stream.files import write_directory
from resstream.stream.provenance import Provenance

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

_MOST_ROWS = 40
"""Rows that a notebook shows of a table."""

_SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def to_plain(value: Any) -> Any:
    """Turn dataclasses, arrays and mappings into what strict JSON can hold."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: to_plain(getattr(value, field.name)) for field in fields}
    if isinstance(value, np.ndarray | np.generic):
        return to_plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value


def from_plain(kind: Any, value: Any) -> Any:
    """Rebuild a value of type `kind` from what `to_plain` made of it."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        return kind(**{name: from_plain(hints[name], item) for name, item in value.items()})
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        return from_plain(next(arg for arg in args if arg is not types.NoneType), value)
    if origin is tuple:
        return tuple(from_plain(args[0], item) for item in value)
    if origin is dict:
        return {key: from_plain(args[1], item) for key, item in value.items()}
    if _is_array(kind):
        return _array(kind, value)
    if kind is float:
        return _SPECIAL[value] if isinstance(value, str) else float(value)
    return value


def _is_array(kind: Any) -> bool:
    return getattr(kind, "array_type", kind) is np.ndarray


def _array(kind: Any, value: Any) -> np.ndarray:
    dtypes = getattr(kind, "dtypes", ())
    if any("int" in str(dtype) for dtype in dtypes):
        return np.asarray(value, dtype=np.int64)
    if any("bool" in str(dtype) for dtype in dtypes):
        return np.asarray(value, dtype=np.bool_)
    return np.asarray(_revive(value), dtype=np.float64)


def _revive(value: Any) -> Any:
    if isinstance(value, list):
        return [_revive(item) for item in value]
    return _SPECIAL[value] if isinstance(value, str) else (math.nan if value is None else value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result(ABC):
    """What every analysis returns.  Arrays are NumPy, detached, on the host."""

    schema: ClassVar[str]
    """Name and version of the JSON form, for example ``resstream.ablate/1``."""

    provenance: Provenance

    @abstractmethod
    def to_dataframe(self) -> "pd.DataFrame":
        """Tidy table: one observation a row, units in the column names."""

    @abstractmethod
    def plot(self) -> "go.Figure":
        """The figure of this result; returned, never shown."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form as plain Python values."""
        return {"schema": self.schema, **to_plain(self)}

    def to_json(self, *, indent: int | None = None) -> str:
        """Strict JSON; see `from_json` for the way back."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Rebuild a result from `to_json`.

        Raises:
            ResultError: The text is not JSON or has another schema.
        """
        try:
            plain = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as err:
            raise ResultError(f"not a result: {err}") from err
        found = plain.pop("schema", None) if isinstance(plain, dict) else None
        if found != cls.schema:
            raise ResultError(f"schema must be {cls.schema!r}, got {found!r}")
        return from_plain(cls, plain)

    def save(self, directory: str | Path) -> Path:
        """Write ``result.json``, the tidy table (parquet and CSV) and the arrays into `directory`.

        ``result.json`` alone is read back; ``arrays.safetensors`` has its array fields for other
        programs.  Everything is written to a temporary name first and renamed when complete.

        Raises:
            OutputError: The directory can't be written.
        """
        from safetensors.numpy import save_file

        table = self.to_dataframe()
        with write_directory(directory) as part:
            (part / "result.json").write_text(self.to_json(indent=1), encoding="utf-8")
            table.to_parquet(part / "table.parquet")
            table.to_csv(part / "table.csv", index=False)
            save_file(self._arrays(), part / "arrays.safetensors", {"schema": self.schema})
        return Path(directory)

    def _arrays(self) -> dict[str, np.ndarray]:
        named = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        kept = {name: value for name, value in named.items() if isinstance(value, np.ndarray)}
        return {name: np.ascontiguousarray(value) for name, value in kept.items()}

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """Notebooks show the figure, in the form that Plotly chooses for their kind.

        A notebook that knows no form but HTML (Colab, a page made of it) has the table beneath.
        """
        figure: Any = self.plot()
        bundle = figure._repr_mimebundle_()
        return {**bundle, "text/html": figure._repr_html_() + self._table_html()}

    def _repr_html_(self) -> str:
        return self._repr_mimebundle_()["text/html"]

    def _table_html(self) -> str:
        table = self.to_dataframe().to_html(index=False, escape=True, max_rows=_MOST_ROWS)
        return f"<details><summary>Table</summary>{table}</details>"
