"""Similarity: its laws, its estimator without bias, and a block that does nothing."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import resstream as rs
from resstream.analysis.sampling import sample_streams
from resstream.analysis.similarity import SimilarityResult, linear_cka, most_alike, similarity
from resstream.errors import ConfigError
from resstream.stream.texts import read_corpus
from tests.analysis import families


def test_a_block_that_writes_nothing_has_no_influence():
    module = families.make("llama")
    with torch.no_grad():
        for part in ("self_attn.o_proj", "mlp.down_proj"):
            module.get_parameter(f"model.layers.1.{part}.weight").zero_()
    result = similarity(rs.load(module), families.tokens(6, 12), n_tokens=48)
    assert result.block_influence[1] == pytest.approx(0, abs=1e-7)
    assert (result.block_influence[[0, 2]] > 1e-3).all()
    assert result.angular_distance[0, 1] == pytest.approx(0, abs=1e-3)
    assert result.cka[1, 2] == pytest.approx(1)
    assert most_alike(result)[0] == 1
    assert np.isnan(result.angular_distance[2]).tolist() == [False, True, True]
    assert result.depths == ("embed", "L0", "L1", "L2")


def test_matrices_are_symmetric_with_ones_on_the_diagonal():
    result = similarity(rs.load(families.make("mamba")), families.tokens(6, 12), n_tokens=48)
    for matrix in (result.cosine, result.cka):
        np.testing.assert_allclose(matrix, matrix.T, atol=1e-12)
        np.testing.assert_allclose(np.diag(matrix), 1)
    influence = 1 - np.diagonal(result.cosine, 1)
    np.testing.assert_allclose(result.block_influence, influence)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 999), width=st.integers(2, 12), factor=st.floats(0.1, 50))
def test_cka_ignores_rotation_scale_and_shift(seed, width, factor):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(20, width, generator=generator, dtype=torch.float64)
    turn, _ = torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64))
    cka = linear_cka(torch.stack([x, factor * x @ turn + 3.0]))
    torch.testing.assert_close(cka, torch.ones(2, 2, dtype=torch.float64))


def test_cka_of_unrelated_streams_is_near_zero_though_tokens_are_few():
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(200, 2, 30, 64, generator=generator, dtype=torch.float64)
    values = torch.stack([linear_cka(pair)[0, 1] for pair in drawn])
    assert abs(float(values.mean())) < 0.02  # the biased estimator gives about 0.65 here


def test_a_sample_holds_last_tokens_and_knows_sinks():
    model = rs.load(families.make("gpt2"))
    corpus = read_corpus(model, families.tokens(5, 10))
    sample = sample_streams(model, corpus, 20)
    assert sample.is_last.sum() == 5
    assert (~sample.is_body).sum() >= 5
    assert sample.streams.shape == (4, 25, 32)
    with pytest.raises(ConfigError, match="at least 8 tokens, got 4"):
        sample_streams(model, corpus, 4)


def test_round_trip():
    result = similarity(rs.load(families.make("gptj")), families.tokens(6, 12), n_tokens=48)
    again = SimilarityResult.from_json(result.to_json())
    np.testing.assert_array_equal(again.angular_distance, result.angular_distance)
    table = result.to_dataframe()
    assert len(table) == 16
    row = table.query("depth == 0 and other_depth == 3").iloc[0]
    assert row["angular_distance"] == result.angular_distance[2, 0]
    assert all(figure.data for figure in (result.plot(), result.plot_cka()))
    assert result.plot_influence().data
