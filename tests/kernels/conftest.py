"""Where the kernels run in tests: in Triton's CPU interpreter, or on a GPU if one is named.

``RESSTREAM_KERNEL_DEVICE=cuda pytest tests/kernels`` runs the same tests on a GPU.  Without it
TRITON_INTERPRET has to be set before triton is imported, so this folder is a process of its own.

The interpreter reads 0 where a masked load names no `other`; a GPU reads anything.  Here such a
load reads NaN, so that a forgotten `other` shows.
"""

import os
import sys

import numpy as np
import pytest

DEVICE = os.environ.get("RESSTREAM_KERNEL_DEVICE", "cpu")
TOO_LATE = DEVICE == "cpu" and "triton" in sys.modules
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"

_POISON = {"float32": np.nan, "float64": np.nan, "float16": np.nan, "uint16": 0x7FC0}
"""What a lane without `other` holds; bfloat16 is uint16 to the interpreter."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if TOO_LATE:
            why = "triton was imported before TRITON_INTERPRET was set; run tests/kernels by itself"
            item.add_marker(pytest.mark.skip(reason=why))
        # The interpreter of Triton 3.6 with NumPy below 2.4.
        item.add_marker(pytest.mark.filterwarnings("ignore:Conversion of an:DeprecationWarning"))
        # Inductor imports parts of torch that warn of themselves.
        item.add_marker(pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"))
        # NumPy warns of overflow and NaN, which some of these tests are about.
        item.add_marker(pytest.mark.filterwarnings("ignore::RuntimeWarning"))


@pytest.fixture(scope="session", autouse=True)
def poisoned_loads():
    """Let masked-out lanes without `other` read NaN."""
    if DEVICE != "cpu" or TOO_LATE:
        yield
        return
    from triton.runtime.interpreter import InterpreterBuilder

    load = InterpreterBuilder.create_masked_load

    def poisoned(self, ptrs, mask, other, *rest, **options):
        found = load(self, ptrs, mask, other, *rest, **options)
        if other is None and found.data.dtype.name in _POISON:
            found.data = np.where(mask.data, found.data, _POISON[found.data.dtype.name]).astype(
                found.data.dtype
            )
        return found

    InterpreterBuilder.create_masked_load = poisoned
    yield
    InterpreterBuilder.create_masked_load = load


@pytest.fixture(scope="session")
def device() -> str:
    """Where the tensors of a test live."""
    return DEVICE
