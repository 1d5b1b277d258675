"""Are arrays what their annotations say?  The checker that jaxtyping runs during the tests.

Only jaxtyping's annotations are looked at.  A checker of all types would also have to resolve names
that are imported for type checkers alone (pandas, Plotly), and pyright has seen those already.
"""

import inspect
import types
import typing
from collections.abc import Callable
from functools import wraps
from typing import Any


def arrays(function: Callable[..., Any]) -> Callable[..., Any]:
    """Check shapes and dtypes of the arguments and of the returned value of `function`."""
    signature = inspect.signature(function)
    hints = {name: item.annotation for name, item in signature.parameters.items()}
    checked = {name: hint for name, hint in hints.items() if _speaks_of_arrays(hint)}
    returned = signature.return_annotation
    check_returned = _speaks_of_arrays(returned)
    if not checked and not check_returned:
        return function

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        for name, hint in checked.items():
            if name in given:
                _require(given[name], hint, name)
        result = function(*args, **kwargs)
        if check_returned:
            _require(result, returned, "the returned value")
        return result

    return run


def _speaks_of_arrays(hint: Any) -> bool:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return any(map(_speaks_of_arrays, typing.get_args(hint)))
    return isinstance(hint, type) and hasattr(hint, "array_type") and hasattr(hint, "dims")


def _require(value: Any, hint: Any, name: str) -> None:
    if not isinstance(value, hint):
        shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", type(value).__name__)
        raise TypeError(f"{name} must be {hint}, got shape {shape} of {dtype}")
