"""Activations on disk: whole or not there, and read back as they were."""

import json
from pathlib import Path

import pytest
import torch

import resstream as rs
from resstream.errors import OutputError, ResultError, UnknownSiteError
from resstream.recording import activations
from resstream.recording.activations import open_activations
from resstream.recording.recorder import record
from resstream.stream.model import StreamModel
from tests.recording.reference import run_and_keep
from tests.stream.test_families import make


@pytest.fixture
def model() -> StreamModel:
    return make("llama")


def tokens(batch: int = 5, pos: int = 6) -> torch.Tensor:
    return torch.randint(3, 90, (batch, pos), generator=torch.Generator().manual_seed(2))


def files(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


def test_what_was_kept_is_what_passed(model: StreamModel, tmp_path: Path) -> None:
    ids = tokens()
    sites = ["blocks.*.resid_post", "blocks.1.hook_mlp_out", "embed", "ln_final.normalized"]
    recording = record(model, ids, sites=sites, keep=tmp_path / "kept", max_tokens=12)
    kept, expected = open_activations(tmp_path / "kept"), run_and_keep(model, ids)
    assert recording.kept == str(tmp_path / "kept")
    assert kept.sites == (
        "hook_embed", "blocks.0.hook_resid_post", "blocks.1.hook_mlp_out",
        "blocks.1.hook_resid_post", "blocks.2.hook_resid_post", "ln_final.hook_normalized",
    )  # fmt: skip
    for site in kept.sites:
        assert kept.shapes[site] == (30, 64)
        torch.testing.assert_close(kept.read(site), expected[site].flatten(0, 1), msg=site)
    assert kept.provenance == recording.provenance


def test_rows_say_where_they_come_from(model: StreamModel, tmp_path: Path) -> None:
    lengths = [[5, 6, 7, 8], [9, 10], [11, 12, 13, 14]]
    record(model, lengths, sites=["blocks.0.resid_pre"], keep=tmp_path / "kept")
    rows = open_activations(tmp_path / "kept").rows()
    assert rows["token"].tolist() == [5, 6, 7, 8, 11, 12, 13, 14, 9, 10]
    assert rows["sequence"].tolist() == [0] * 4 + [2] * 4 + [1] * 2
    assert rows["position"].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]


def test_shards(model: StreamModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activations, "_SHARD_BYTES", 4000)
    record(model, tokens(), sites=["blocks.1.mlp_out"], keep=tmp_path, max_tokens=6)
    kept = open_activations(tmp_path)
    assert files(tmp_path) == [*kept.shards, "index.json"]
    assert [len(chunk) for chunk in kept.chunks("blocks.1.mlp_out")] == [18, 12]


def test_a_model_keeps_its_dtype(model: StreamModel, tmp_path: Path) -> None:
    half = rs.load(model.module.bfloat16())
    record(half, tokens(), sites=["blocks.1.mlp_out"], keep=tmp_path)
    kept = open_activations(tmp_path)
    assert kept.read("blocks.1.mlp_out").dtype == torch.bfloat16
    assert kept.dtypes == {"blocks.1.hook_mlp_out": "bfloat16"}


def test_keeping_changes_no_statistic(model: StreamModel, tmp_path: Path) -> None:
    plain = record(model, tokens())
    keeping = record(model, tokens(), sites=["*"], keep=tmp_path)
    assert plain.write_norm.mean == pytest.approx(keeping.write_norm.mean)


class StopError(Exception):
    pass


def stop(done: int, total: int) -> None:
    if done >= total // 2:
        raise StopError


def test_an_interrupted_run_leaves_nothing(model: StreamModel, tmp_path: Path) -> None:
    goal = tmp_path / "kept"
    with pytest.raises(StopError):
        record(model, tokens(), sites=["*"], keep=goal, max_tokens=6, progress=stop)
    assert files(tmp_path) == []
    with pytest.raises(ResultError, match="no activations, or not complete"):
        open_activations(goal)


def test_an_interrupted_run_leaves_the_old_ones(model: StreamModel, tmp_path: Path) -> None:
    goal = tmp_path / "kept"
    record(model, tokens(), sites=["blocks.0.mlp_out"], keep=goal)
    before = open_activations(goal).read("blocks.0.mlp_out")
    with pytest.raises(StopError):
        record(model, tokens(9), sites=["*"], keep=goal, max_tokens=6, progress=stop)
    assert torch.equal(open_activations(goal).read("blocks.0.mlp_out"), before)


def test_a_failure_while_files_are_moved_is_not_taken_for_complete(
    model: StreamModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(model, tokens(), sites=["blocks.0.mlp_out"], keep=tmp_path)
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("power is gone")))
    with pytest.raises(OutputError, match="power is gone"):
        record(model, tokens(), sites=["blocks.1.mlp_out"], keep=tmp_path)
    with pytest.raises(ResultError, match="not complete"):
        open_activations(tmp_path)


def test_new_ones_replace_old_ones_and_nothing_else(
    model: StreamModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activations, "_SHARD_BYTES", 4000)
    record(model, tokens(), sites=["blocks.1.mlp_out"], keep=tmp_path, max_tokens=6)
    (tmp_path / "notes.txt").write_text("mine")
    record(model, tokens(1), sites=["blocks.0.mlp_out"], keep=tmp_path)
    assert files(tmp_path) == ["activations-00000.safetensors", "index.json", "notes.txt"]


def test_refusals(model: StreamModel, tmp_path: Path) -> None:
    with pytest.raises(UnknownSiteError, match=r"unknown site 'blocks\.9\.mlp_out'"):
        record(model, tokens(), sites=["blocks.9.mlp_out"], keep=tmp_path / "kept")
    assert files(tmp_path) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="it is a file"):
        record(model, tokens(), sites=["*"], keep=tmp_path / "file")
    record(model, tokens(), sites=["blocks.0.mlp_out"], keep=tmp_path / "kept")
    with pytest.raises(UnknownSiteError):
        open_activations(tmp_path / "kept").read("blocks.1.mlp_out")


def test_damaged_directories(model: StreamModel, tmp_path: Path) -> None:
    record(model, tokens(), sites=["blocks.0.mlp_out"], keep=tmp_path)
    (tmp_path / "activations-00000.safetensors").unlink()
    with pytest.raises(ResultError, match="lacks 1 of its shards"):
        open_activations(tmp_path)
    (tmp_path / "index.json").write_text(json.dumps({"schema": "other/1"}))
    with pytest.raises(ResultError, match=r"must have schema .*activations/1', got 'other/1'"):
        open_activations(tmp_path)
    (tmp_path / "index.json").write_text("{")
    with pytest.raises(ResultError, match="cannot read"):
        open_activations(tmp_path)
