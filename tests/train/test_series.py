"""Is the series on disk what was appended, also after a crash, a resume, and in a long run?"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resstream.errors import OutputError, ResultError
from resstream.stream.provenance import Provenance
from resstream.train.recording import read_recording
from resstream.train.series import Layout, SeriesWriter, open_series

LAYOUT = Layout(
    model="small",
    layers=(0, 0),
    names=("attn", "mlp"),
    sites=("blocks.0.hook_attn_out", "blocks.0.hook_mlp_out"),
    stream_sites=("blocks.0.hook_resid_pre", "blocks.0.hook_resid_post"),
    scale_layers=(0,),
    scale_names=("attn",),
    n_blocks=1,
    places=("blocks.0.hook_resid_pre", "the loss"),
)
PROVENANCE = Provenance(
    model="small", model_hash="", text="", text_hash="", dtype="float32", device="cpu", seed=0,
    replay_error=0.0, versions={},
)  # fmt: skip


def row(step, loss=2.0, bad=-1):
    return LAYOUT.row(
        step=step, loss=loss, learning_rate=0.1, bad=bad, gradients=[3.0, 4.0],
        writes=np.arange(6).reshape(3, 2), scale=np.nan, stream_norm=[5.0, 6.0],
    )  # fmt: skip


def fill(place, steps, *, done=0, layout=LAYOUT):
    writer = SeriesWriter(place, layout, done=done)
    for step in steps:
        writer.append(row(step, loss=float(step)))
    writer.close()


@settings(max_examples=20)
@given(st.integers(0, 5), st.integers(1, 4))
def test_a_row_is_split_into_its_parts(n_blocks, n_writes):
    layout = Layout(
        model="", layers=(0,) * n_writes, names=("attn",) * n_writes, sites=("s",) * n_writes,
        stream_sites=("x", "y"), scale_layers=(), scale_names=(), n_blocks=n_blocks, places=(),
    )  # fmt: skip
    draw = np.random.default_rng(0)
    parts = {name: draw.standard_normal(shape) for name, shape in layout.sections.items()}
    flat = layout.row(**parts)
    assert flat.shape == (layout.width,)
    for name, value in layout.split(flat[None]).items():
        assert value[0] == pytest.approx(parts[name], rel=1e-6)


def test_what_was_appended_is_read(tmp_path):
    fill(tmp_path, range(1, 6))
    layout, rows = open_series(tmp_path)
    assert layout == LAYOUT
    assert np.array_equal(rows[3], row(4, loss=4.0), equal_nan=True)


def test_a_resumed_run_goes_on_behind_its_checkpoint(tmp_path):
    fill(tmp_path, range(1, 8))
    fill(tmp_path, [6, 7, 8], done=5)
    assert open_series(tmp_path)[1][:, 0].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    fill(tmp_path, [1, 2])
    assert open_series(tmp_path)[1][:, 0].tolist() == [1, 2]


def test_a_row_that_a_crash_cut_off_is_not_read(tmp_path):
    fill(tmp_path, range(1, 4))
    steps = tmp_path / "steps.f32"
    steps.write_bytes(steps.read_bytes()[:-4])
    assert open_series(tmp_path)[1][:, 0].tolist() == [1, 2]
    fill(tmp_path, [3, 4], done=2)
    assert open_series(tmp_path)[1][:, 0].tolist() == [1, 2, 3, 4]


def test_long_runs_are_means_over_spans(tmp_path):
    fill(tmp_path, range(1, 11))
    seen = read_recording(tmp_path, PROVENANCE, most=5)
    assert seen.n_steps == 10
    assert seen.steps.tolist() == [2, 4, 6, 8, 10]
    assert seen.loss.tolist() == [1.5, 3.5, 5.5, 7.5, 9.5]
    assert seen.total_gradient_norm == pytest.approx(np.full(5, 5.0))
    assert read_recording(tmp_path, PROVENANCE).steps.tolist() == list(range(1, 11))


def test_the_first_bad_step(tmp_path):
    writer = SeriesWriter(tmp_path, LAYOUT, done=0)
    for step, bad in ((1, -1), (2, 1), (3, 0)):
        writer.append(row(step, bad=bad))
    writer.close()
    seen = read_recording(tmp_path, PROVENANCE)
    assert seen.bad_steps == 2
    assert seen.first_bad is not None
    assert (seen.first_bad.step, seen.first_bad.place) == (2, "the loss")


def test_an_empty_series_is_a_recording(tmp_path):
    fill(tmp_path, [])
    seen = read_recording(tmp_path, PROVENANCE)
    assert seen.n_steps == 0
    assert seen.first_bad is None
    assert seen.write_norm.shape == (0, 2)


def test_series_of_another_model_are_not_gone_on_with(tmp_path):
    fill(tmp_path, [1])
    other = Layout(**{**{f: getattr(LAYOUT, f) for f in LAYOUT.__slots__}, "n_blocks": 2})
    with pytest.raises(ResultError, match="holds the series of another model"):
        SeriesWriter(tmp_path, other, done=1)


def test_no_series(tmp_path):
    with pytest.raises(ResultError, match="no series of a monitor in"):
        open_series(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        SeriesWriter(tmp_path / "file", LAYOUT, done=0)
