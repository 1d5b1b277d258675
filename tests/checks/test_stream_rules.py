"""Rules about several writes together: stalls, growth, rounding; and what does not set them off."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from resstream.checks.checking import check
from resstream.checks.experiments import Lab
from resstream.checks.readings import read
from resstream.checks.rules import rs301_exploding, rs302_stalled, rs303_lossy
from resstream.recording.recorder import record
from resstream.recording.result import Recording
from resstream.stream.loading import load
from resstream.stream.model import StreamModel
from resstream.stream.texts import read_corpus

IDS = torch.randint(0, 256, (6, 96), generator=torch.Generator().manual_seed(0))


def growing(recording: Recording, factor: float) -> Recording:
    """The recording with a stream that grows by `factor` at every point."""
    depth = recording.stream_norm.quantiles.shape[0]
    norms = factor ** np.arange(depth, dtype=float)
    quantiles = np.broadcast_to(norms[:, None, None], recording.stream_norm.quantiles.shape)
    return replace(recording, stream_norm=replace(recording.stream_norm, quantiles=quantiles))


@pytest.fixture
def recording(tiny_llama: Any) -> Recording:
    return record(load(tiny_llama(num_hidden_layers=9)), IDS)


def test_growth_has_an_interval(recording: Recording) -> None:
    fit = rs301_exploding.growth_interval(growing(recording, 1.2))
    assert fit is not None
    factor, low, high, r2, blocks = fit
    assert factor == pytest.approx(1.44)  # two points a block
    assert low <= factor <= high
    assert (blocks, r2) == (6, pytest.approx(1.0))


def test_only_growth_without_bound_is_suspect(recording: Recording) -> None:
    assert rs301_exploding.look(recording) == []
    assert rs301_exploding.look(growing(recording, 1.2)) == []
    (finding,) = rs301_exploding.look(growing(recording, 4.0))
    assert (finding.code, finding.status) == ("RS301", "suspect")


def stalled_demo(layers: range) -> StreamModel:
    model = load("demo")
    with torch.no_grad():
        for write in model.spec.writes:
            if write.layer in layers:
                assert write.output_matrix is not None
                model.module.get_parameter(write.output_matrix).mul_(1e-5)
    return model


@pytest.mark.parametrize(
    ("layers", "expected"), [(range(2, 5), [2]), (range(2, 4), []), (range(8), [])]
)
def test_a_stall_is_a_stretch_beside_blocks_that_move(layers: range, expected: list[int]) -> None:
    model = stalled_demo(layers)
    corpus = read_corpus(model, None, context=64, max_sequences=8)
    lab = Lab(model, corpus, 0)
    recording = record(model, corpus, at_end=lab.hear)
    lab.settle_base()
    lab.informative = True
    found = rs302_stalled.look(read(recording, model.spec.writes), lab)
    assert [finding.layer for finding in found] == expected


def test_rounding_is_seen_in_sixteen_bits_only(tiny_llama: Any) -> None:
    module = tiny_llama(3)
    with torch.no_grad():
        module.model.embed_tokens.weight.mul_(300)
    wide = load(module)
    assert rs303_lossy.look(wide, read_corpus(wide, IDS)) == []
    narrow = load(module.to(torch.bfloat16))
    found = rs303_lossy.look(narrow, read_corpus(narrow, IDS))
    assert {finding.write for finding in found} == {"attn", "mlp"}
    assert all(finding.severity == "info" for finding in found)
    assert check(narrow, IDS, select="RS303").verdict == "healthy"
