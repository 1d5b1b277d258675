"""A recording as table, JSON, files and figure."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from resstream.recording.ledger import METRICS
from resstream.recording.recorder import record
from resstream.recording.result import Recording
from tests.stream.test_families import make


@pytest.fixture(scope="module")
def recording() -> Recording:
    model = make("llama")
    with torch.no_grad():
        model.module.get_parameter("model.layers.2.mlp.down_proj.weight")[4] = torch.nan
    return record(model, torch.randint(3, 90, (4, 8)))


def test_json_is_strict_and_comes_back(recording: Recording) -> None:
    text = recording.to_json()
    plain = json.loads(text, parse_constant=lambda name: pytest.fail(f"bare {name}"))
    assert plain["schema"] == "resstream.record/1"
    assert plain["first_non_finite"]["value"] == "nan"
    again = Recording.from_json(text)
    assert again.to_json() == text
    assert again.layers.dtype == np.int64
    assert again.additive.dtype == np.bool_
    np.testing.assert_array_equal(again.cosine.quantiles, recording.cosine.quantiles)
    assert again.first_non_finite is not None
    assert again.first_non_finite.site == "blocks.2.hook_mlp_out"


def test_table_is_tidy(recording: Recording) -> None:
    table = recording.to_dataframe()
    keys = ["site", "stratum", "metric"]
    assert not table.duplicated(keys).any()
    assert len(table) == 6 * 2 * (len(METRICS) + 3) + 7 * 2
    indexed = table.set_index(keys)
    row = indexed.loc[("blocks.1.hook_attn_out", "body", "relative_norm")]
    assert row["mean"] == recording.relative_norm.mean[2, 0]
    assert row["q50"] == recording.relative_norm.median[2, 0]
    assert (row["layer"], row["write"]) == (1, "attn")
    votes = indexed.loc[("blocks.0.hook_mlp_out", "body", "top_channel_votes")]
    assert votes["channel"] == recording.top_channel[1, 0]
    assert votes["mean"] == recording.top_channel_votes[1, 0]
    assert indexed.loc[("blocks.2.hook_mlp_out", "sink", "non_finite"), "mean"] == 4
    last = indexed.loc[("blocks.2.hook_resid_mid", "sink", "stream_norm")]
    assert last["mean"] == recording.stream_norm.mean[5, 1]


def test_files(recording: Recording, tmp_path: Path) -> None:
    recording.save(tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "arrays.safetensors", "result.json", "table.csv", "table.parquet",
    ]  # fmt: skip
    again = Recording.from_json((tmp_path / "out" / "result.json").read_text())
    assert again.to_json() == recording.to_json()


@pytest.mark.parametrize("metric", [*METRICS, "stream_norm"])
def test_figures(recording: Recording, metric: str) -> None:
    figure = recording.plot(metric)
    names = {trace.name for trace in figure.data}
    assert names >= ({"body", "sink"} if metric == "stream_norm" else {"attn", "mlp"})
    line = next(trace for trace in figure.data if trace.name in ("attn", "body"))
    if metric == "stream_norm":
        assert list(line.x) == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    else:
        assert list(line.x) == [0, 1, 2]
        np.testing.assert_allclose(line.y, recording.summary(metric).median[::2, 0])


def test_unknown_metrics_are_refused(recording: Recording) -> None:
    with pytest.raises(ValueError, match=r"metric must be one of branch_norm, .* got 'size'"):
        recording.plot("size")
