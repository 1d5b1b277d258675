"""Do an output matrix and what feeds it still belong together?

A hidden unit (or a channel of a head) that reads much also writes much: in trained networks the
norms of the columns of the output matrix go with the norms of the rows that feed them.  A matrix
that was drawn anew, or whose heads were exchanged, has lost that.
"""

import numpy as np
from jaxtyping import Float

from resstream.checks.weights import MatrixReading, WeightTable

_VALUE_NAMES = ("v_proj", "value", "v_lin", "W_V")


def match_to_inputs(table: WeightTable, own: MatrixReading) -> float:
    """Correlation of log norms of columns and feeding rows; the best of all that fit, else NaN."""
    columns = output_columns(own)
    rows = [
        other.row_norms
        for other in table.layer_of(own.layer or 0)
        if other.write == own.write and other.name != own.name and other.is_matrix
        and other.row_norms.shape == columns.shape and other.shape != own.shape
    ] if own.write == "mlp" else _value_rows(table, own, len(columns))  # fmt: skip
    return max((correlation(columns, each) for each in rows), default=float("nan"))


def output_columns(own: MatrixReading) -> Float[np.ndarray, " d_in"]:
    """Norms over what the matrix reads: the longer side of an MLP's, else its columns."""
    return own.column_norms


def _value_rows(table: WeightTable, own: MatrixReading, width: int) -> list[np.ndarray]:
    values = value_reading(table, own)
    return [values.row_norms] if values is not None and len(values.row_norms) == width else []


def value_reading(table: WeightTable, own: MatrixReading) -> MatrixReading | None:
    """The value matrix of the same attention, if it is a matrix of its own."""
    found = [
        other
        for other in table.layer_of(own.layer or 0)
        if other.write == "attn" and other.is_matrix and any(v in other.role for v in _VALUE_NAMES)
    ]
    return found[0] if len(found) == 1 else None


def correlation(one: Float[np.ndarray, " n"], other: Float[np.ndarray, " n"]) -> float:
    """Of the logarithms; NaN if either does not vary or holds zeros."""
    with np.errstate(divide="ignore", invalid="ignore"):
        left, right = np.log(one), np.log(other)
    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        return float("nan")
    if left.std() < 1e-9 or right.std() < 1e-9:
        return float("nan")
    return float(np.corrcoef(left, right)[0, 1])
