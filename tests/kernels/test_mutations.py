"""Would the tests notice the mistakes that such kernels are known for?

Each mistake is made in a copy of the package; the named test must fail there, and pass in a copy
without it.  Bugs of these kinds: int32 offsets (Liger #803, vLLM #42862, Apex #411), unmasked
variance (quack 9310d47), a load without `other` (flash-attention #781), bfloat16 by truncation.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Mutation:
    """One edit of the kernel's source, and the test that must notice."""

    old: str
    new: str
    test: str


MUTATIONS = {
    "truncating cast": Mutation(
        "rounded = bits + 0x7FFF + ((bits >> 16) & 1)",
        "rounded = bits",
        "test_forward.py::test_rounding_is_to_nearest_even",
    ),
    "int32 row": Mutation(
        "tl.program_id(0).to(tl.int64)",
        "tl.program_id(0)",
        "test_offsets.py::test_rows_beyond_two_to_the_31[forward]",
    ),
    "missing other": Mutation(
        "row * branch_stride + channel, mask=inside, other=0.0)",
        "row * branch_stride + channel, mask=inside)",
        "test_matrix.py::test_widths[97-rms]",
    ),
    "unmasked variance": Mutation(
        "tl.where(channel < WIDTH, new - mean, 0.0)",
        "new - mean",
        "test_matrix.py::test_widths[97-layer]",
    ),
}


def run_copy(folder: Path, tests: list[str], mutation: Mutation | None) -> int:
    """Copy package and tests, make the mistake, run the tests there; pytest's exit status."""
    (folder / "tests").mkdir()
    for part in ("resstream/kernels", "tests/kernels"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("resstream/__init__.py", "resstream/errors.py"):
        shutil.copy(ROOT / part, folder / part)
    if mutation:
        source = folder / "resstream" / "kernels" / "triton_forward.py"
        text = source.read_text(encoding="utf-8")
        assert text.count(mutation.old) == 1, f"the kernel has no single {mutation.old!r} any more"
        source.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-c",
        os.devnull,
        "--rootdir",
        str(folder),
    ]
    command += ["--import-mode=importlib", "-p", "no:cacheprovider", "-W", "ignore", "--tb=no"]
    done = subprocess.run(
        [*command, *(f"tests/kernels/{test}" for test in tests)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.returncode


def test_without_a_mistake_they_pass(tmp_path):
    assert run_copy(tmp_path, [m.test for m in MUTATIONS.values()], None) == 0


@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS)
def test_mistake_is_noticed(mutation, tmp_path):
    assert run_copy(tmp_path, [mutation.test], mutation) == 1
