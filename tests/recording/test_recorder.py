"""`record` against a slow reference, on blocks of every shape, healthy and damaged."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import resstream as rs
from resstream.errors import ConfigError, SilentHookError, TextError
from resstream.recording.ledger import METRICS
from resstream.recording.reading import Reading
from resstream.recording.recorder import record
from resstream.recording.route import plan_route
from resstream.stream.model import StreamModel
from resstream.stream.texts import Batch, read_corpus
from tests.recording.reference import run_and_keep, slow_metrics
from tests.stream.test_families import make
from tests.stream.test_own_modules import Block, Net, Opaque

BODY, SINK = 0, 1


def tokens(batch: int = 3, pos: int = 9, size: int = 90) -> Tensor:
    return torch.randint(3, size, (batch, pos), generator=torch.Generator().manual_seed(1))


class PostNorm(Block):
    """Norms the stream after each write, and doubles it before."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(2.0 * x + self.mix(x))
        return self.norm2(2.0 * x + self.ff(x))


class Three(Block):
    """Three writes, one after the other; the streams between have no names."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.attention = nn.Linear(width, width)
        self.norm3 = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mix(self.norm1(x))
        x = x + self.attention(self.norm3(x))
        return x + self.ff(self.norm2(x))


def own(block: Callable[[int], nn.Module]) -> StreamModel:
    torch.manual_seed(0)
    return rs.load(Net(block))


MODELS: dict[str, Callable[[], StreamModel]] = {
    **{
        name: lambda name=name: make(name)
        for name in (
            "llama", "gpt2", "gpt_neox", "gptj", "falcon", "gemma2", "granite", "bloom", "opt",
            "mamba", "olmo2", "rwkv",
        )
    },
    "scaled": lambda: own(Block),
    "opaque": lambda: own(Opaque),
    "post norm": lambda: own(PostNorm),
}  # fmt: skip


def per_token(model: StreamModel, ids: Tensor) -> dict[str, np.ndarray]:
    """``metric -> [write, batch, pos]``, as the recorder reads it."""
    with torch.no_grad():
        reading = Reading(plan_route(model.spec), model.begin(ids).stream)
        model.run(ids, dict(reading.readers()))
    reading.require_complete()
    return dict(zip(METRICS, reading.metrics(), strict=True))


@pytest.mark.parametrize("name", MODELS)
def test_every_token_is_as_the_reference_says(name: str) -> None:
    model = MODELS[name]()
    ids = tokens(2, 5, size=50)
    found, expected = per_token(model, ids), slow_metrics(model, ids)
    for metric in METRICS:
        scale = expected["write_norm"].max() if metric in ("orthogonal", "parallel") else 1.0
        np.testing.assert_allclose(
            found[metric], expected[metric], rtol=2e-4, atol=2e-5 * scale, err_msg=metric
        )


@pytest.mark.parametrize("name", MODELS)
def test_statistics_are_over_the_tokens(name: str) -> None:
    model, ids = MODELS[name](), tokens(size=50)
    recording, metrics = record(model, ids), per_token(model, ids)
    assert recording.n_tokens.tolist() == [3 * 8, 3], "random models have no massive tokens"
    for metric in METRICS:
        body = metrics[metric][..., 1:].reshape(len(recording.sites), -1)
        first = metrics[metric][..., 0]
        summary = recording.summary(metric)
        for stratum, values in ((BODY, body), (SINK, first)):
            np.testing.assert_allclose(
                summary.mean[:, stratum], values.mean(1), rtol=1e-4, atol=1e-6
            )
            np.testing.assert_allclose(summary.std[:, stratum], values.std(1), rtol=1e-3, atol=1e-5)
            low, high = np.quantile(values, [0.4, 0.6], axis=1)
            slack = 1e-5 * np.abs(values).max(1)
            assert (summary.median[:, stratum] >= low - slack).all()
            assert (summary.median[:, stratum] <= high + slack).all()
    assert recording.first_non_finite is None
    assert recording.non_finite.sum() == 0


@pytest.mark.parametrize("name", ["llama", "gptj", "post norm", "mamba"])
def test_points_of_the_stream(name: str) -> None:
    model, ids = MODELS[name](), tokens(size=50)
    recording, kept = record(model, ids), run_and_keep(model, ids)
    for depth, site in enumerate(recording.stream_sites):
        norms = kept[site].double().norm(dim=-1)[:, 1:]
        mean = recording.stream_norm.mean[depth, BODY]
        assert mean == pytest.approx(float(norms.mean()), rel=1e-5), site
    assert recording.additive.all() == (name != "post norm")


def test_common_mode_and_channels() -> None:
    model, ids = make("llama"), tokens()
    recording, kept = record(model, ids, max_tokens=9), run_and_keep(model, ids)
    for row, site in enumerate(recording.sites):
        writes = kept[site][:, 1:].flatten(0, 1).double()
        mean = writes.mean(0)
        share = float(mean @ mean / writes.square().sum(1).mean())
        assert recording.common_mode[row, BODY] == pytest.approx(share, rel=1e-5)
        votes = writes.abs().argmax(1).bincount(minlength=64)
        top = int(recording.top_channel[row, BODY])
        assert votes[top] == votes.max()
        assert recording.top_channel_votes[row, BODY] == pytest.approx(int(votes.max()) / 24)


def test_batches_do_not_change_the_numbers() -> None:
    model, ids = make("llama"), tokens(7, 11)
    one, other = record(model, ids), record(model, ids, max_tokens=1)
    for metric in (*METRICS, "stream_norm"):
        for field in ("mean", "std", "count"):
            np.testing.assert_allclose(
                getattr(one.summary(metric), field),
                getattr(other.summary(metric), field),
                rtol=2e-4,
                atol=1e-6,
                err_msg=f"{metric} {field}",
            )
    assert one.growth == pytest.approx(other.growth, nan_ok=True)


def test_a_recording_can_be_repeated_exactly() -> None:
    model, ids = make("llama"), tokens(20, 30)
    assert record(model, ids).to_json() == record(model, ids).to_json()


def test_recording_changes_nothing_and_leaves_nothing() -> None:
    model, ids = make("llama"), tokens()
    with torch.no_grad():
        before = model.forward(ids)
        record(model, ids)
        assert torch.equal(model.forward(ids), before)
    for part in model.module.modules():
        assert not part._forward_hooks
        assert not part._forward_pre_hooks


@pytest.mark.parametrize("kept", [None, ["hook_embed"]])
def test_the_last_stream_of_each_batch_is_handed_over(
    kept: list[str] | None, tmp_path: Path
) -> None:
    model, ids = make("llama"), tokens(5, 9)
    heard: list[tuple[tuple[int, ...], Tensor]] = []

    def hear(batch: Batch, stream: Tensor) -> None:
        heard.append((tuple(batch.rows), model.readout(stream)))

    place = tmp_path / "kept" if kept else None
    with torch.no_grad():
        record(model, ids, at_end=hear, max_tokens=18, sites=kept, keep=place)
        assert [rows for rows, _ in heard] == [(0, 1), (2, 3), (4,)]
        assert torch.equal(torch.cat([logits for _, logits in heard]), model.forward(ids))


def test_sequences_of_different_length() -> None:
    model = make("llama")
    recording = record(model, [[5, 6, 7], [8, 9], [5, 6, 7, 8, 9]])
    assert recording.n_sequences == 3
    assert recording.n_tokens.tolist() == [7, 3]


def test_a_dead_write_has_no_direction_and_says_so() -> None:
    model, ids = make("llama"), tokens()
    with torch.no_grad():
        model.module.get_parameter("model.layers.1.mlp.down_proj.weight").zero_()
    recording = record(model, ids)
    row = recording.labels.index("L1 mlp")
    assert recording.write_norm.median[row, BODY] == 0.0
    assert recording.relative_norm.mean[row, BODY] == 0.0
    assert recording.cosine.count[row].tolist() == [0, 0]
    assert np.isnan(recording.cosine.median[row]).all()
    assert (np.delete(recording.cosine.count[:, BODY], row) == 24).all()


@pytest.mark.parametrize("max_tokens", [None, 1])
@pytest.mark.parametrize(
    ("weight", "site"),
    [
        ("model.layers.1.mlp.down_proj.weight", "blocks.1.hook_mlp_out"),
        ("model.layers.2.self_attn.o_proj.weight", "blocks.2.hook_attn_out"),
        ("model.layers.0.input_layernorm.weight", "blocks.0.hook_attn_out"),
    ],
)
def test_the_first_culprit_of_nan_weights(weight: str, site: str, max_tokens: int | None) -> None:
    model, ids = make("llama"), tokens()
    with torch.no_grad():
        model.module.get_parameter(weight)[7] = torch.nan
    recording = record(model, ids, max_tokens=max_tokens)
    culprit = recording.first_non_finite
    assert culprit is not None
    assert (culprit.site, culprit.sequence, culprit.token) == (site, 0, 0)
    assert np.isnan(culprit.value)
    assert (culprit.layer, culprit.write) == (int(site.split(".")[1]), site[14:].split("_")[0])
    row = recording.sites.index(site)
    assert recording.non_finite[:row].sum() == 0
    assert recording.non_finite[row].sum() > 0
    if "norm" not in weight:
        assert culprit.channel == 7
        assert recording.non_finite[row].tolist() == [24, 3]


def test_the_culprit_is_the_first_token_that_fails() -> None:
    model, ids = make("llama"), tokens(3, 9)
    ids[ids == 20] = 21
    ids[1, 4] = ids[2, 2] = 20
    with torch.no_grad():
        model.module.get_parameter("model.embed_tokens.weight")[20, 5] = torch.inf
    for max_tokens in (None, 1):
        culprit = record(model, ids, max_tokens=max_tokens).first_non_finite
        assert culprit is not None
        assert (culprit.site, culprit.write) == ("blocks.0.hook_resid_pre", None)
        assert (culprit.sequence, culprit.token, culprit.channel) == (1, 4, 5)
        assert culprit.value == np.inf


def test_an_addition_that_overflows_is_found_at_the_stream() -> None:
    """Both terms fit float16, and their sum does not: the culprit is the point behind the write."""
    model = rs.load(make("gpt2").module.half())
    with torch.no_grad():
        model.module.get_parameter("transformer.wpe.weight")[:, 3] = 6e4
        bias = model.module.get_parameter("transformer.h.0.attn.c_proj.bias")
        bias[3] = 6e4
    recording = record(model, tokens())
    culprit = recording.first_non_finite
    assert culprit is not None
    assert (culprit.site, culprit.channel) == ("blocks.0.hook_resid_mid", 3)
    assert recording.stream_non_finite[1].tolist() == [24, 3]
    assert recording.non_finite[0].sum() == 0


def test_a_massive_token_is_kept_apart() -> None:
    model, ids = make("llama"), tokens(2, 12)
    ids[ids == 33] = 34
    ids[:, 6] = 33
    with torch.no_grad():
        model.module.get_parameter("model.embed_tokens.weight")[33] *= 1e4
    recording = record(model, ids)
    assert recording.n_tokens.tolist() == [20, 4]
    body = recording.stream_norm.quantiles[0, BODY]
    assert body[-1] < 3 * body[0]
    assert recording.stream_norm.mean[0, SINK] > 100 * body[-1]


def test_the_streams_between_three_writes() -> None:
    model, ids = own(Three), tokens(size=50)
    assert len(model.spec.blocks[0].writes) == 3
    recording, kept = record(model, ids), run_and_keep(model, ids)
    for layer in range(4):
        stream = kept[f"blocks.{layer}.hook_resid_pre"]
        for write in model.spec.blocks[layer].writes:
            value = kept[write.site]
            ratio = (value.norm(dim=-1) / stream.norm(dim=-1))[:, 1:].mean()
            found = recording.relative_norm.mean[recording.sites.index(write.site), BODY]
            assert found == pytest.approx(float(ratio), rel=1e-4), write.site
            stream = stream + value


def test_pictures() -> None:
    import transformers

    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
        image_size=32, patch_size=8,
    )  # fmt: skip
    model = rs.load(transformers.ViTModel(config))
    pictures = torch.randn(5, 3, 32, 32)
    whole, parts = record(model, pictures), record(model, pictures, max_tokens=20)
    assert whole.n_sequences == 5
    assert whole.n_tokens.tolist() == [5 * 16, 5]
    np.testing.assert_allclose(whole.write_norm.mean, parts.write_norm.mean, rtol=1e-4)
    with pytest.raises(TextError, match="does not read tokens; pass a tensor"):
        record(model, "some text")


def test_half_precision_models() -> None:
    model, ids = make("llama"), tokens()
    wide = record(model, ids)
    narrow = record(rs.load(model.module.bfloat16()), ids)
    np.testing.assert_allclose(narrow.write_norm.mean, wide.write_norm.mean, rtol=0.1)
    assert narrow.provenance.dtype == "bfloat16"


def test_progress_counts_sequences() -> None:
    seen: list[tuple[int, int]] = []
    record(make("llama"), tokens(5, 4), max_tokens=8, progress=lambda *at: seen.append(at))
    assert seen == [(2, 5), (4, 5), (5, 5)]


@pytest.mark.parametrize("options", [{"keep": "somewhere"}, {"sites": ["blocks.*.mlp_out"]}])
def test_sites_and_keep_go_together(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="if both are given"):
        record(make("llama"), tokens(), **options)


def test_a_batch_needs_room() -> None:
    with pytest.raises(ConfigError, match="max_tokens must be at least 1, got 0"):
        record(make("llama"), tokens(), max_tokens=0)


def test_a_stop_that_is_never_reached_is_an_error() -> None:
    model = make("llama")
    with torch.no_grad():
        reading = Reading(plan_route(model.spec), model.begin(tokens()).stream)
        readers = dict(reading.readers())
        del readers["blocks.1.hook_mlp_out"]
        model.run(tokens(), readers)
    with pytest.raises(SilentHookError, match=r"never reached blocks\.1\.hook_mlp_out"):
        reading.require_complete()


def test_memory_does_not_grow_with_the_text() -> None:
    """Python's and NumPy's memory; resident memory of a real model is held in `test_real`."""
    model = make("llama")

    def peak(batch: int) -> int:
        corpus = read_corpus(model, tokens(batch, 60))  # the text itself does grow
        tracemalloc.start()
        record(model, corpus, max_tokens=960)
        _, highest = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return highest

    peak(16)
    few, many = peak(32), peak(160)
    assert many < 1.05 * few
