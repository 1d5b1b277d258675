"""The recorder on SmolLM2: known sinks, known growth, and memory that stays flat."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import resstream as rs
from resstream.recording.recorder import record

Finder = Callable[[str], Path]

BODY, SINK = 0, 1
PEAK_MEMORY = """
import sys
import resstream as rs
from resstream.sweep.memory import peak_memory

model, text, n_tokens = sys.argv[1:]
recording = rs.record(rs.load(model), text, context=250, max_sequences=int(n_tokens) // 250)
assert recording.n_tokens.sum() == int(n_tokens)
print(peak_memory())
"""


@pytest.mark.data
def test_smollm2(smollm2_path: Finder, data_path: Finder) -> None:
    model = rs.load(smollm2_path("smollm2"))
    text = data_path("texts/wikitext2_raw_test.txt")
    recording = record(model, text, context=128, max_sequences=4)
    assert recording.n_tokens.tolist() == [4 * 127, 4]
    stream = recording.stream_norm.median
    depth = recording.stream_sites.index("blocks.14.hook_resid_pre")
    assert stream[depth, SINK] > 100 * stream[depth, BODY]
    assert 1.05 < recording.growth < 1.12
    assert recording.growth_r2 > 0.9
    first = recording.labels.index("L0 mlp")
    assert recording.relative_norm.median[first, BODY] > 5
    assert recording.first_non_finite is None


@pytest.mark.data
@pytest.mark.slow
def test_memory_does_not_grow_with_the_text(smollm2_path: Finder, data_path: Finder) -> None:
    """Ten times the text takes at most 5 % more resident memory at its peak."""
    place = (str(smollm2_path("smollm2")), str(data_path("texts/wikitext2_raw_test.txt")))
    few, many = (
        int(subprocess.check_output([sys.executable, "-c", PEAK_MEMORY, *place, n_tokens]))
        for n_tokens in ("2000", "20000")
    )
    assert many < 1.05 * few
