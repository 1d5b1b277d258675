"""The lens over a text: the same numbers as the lens on prompts, in memory that does not grow."""

from pathlib import Path

import numpy as np
import pytest

import resstream as rs
from resstream.analysis.lens_profile import LensProfileResult, lens_profile
from resstream.analysis.logit_lens import logit_lens
from resstream.errors import ConfigError
from resstream.stream.texts import read_corpus
from tests.analysis import families


@pytest.mark.parametrize("family", ["llama", "mamba"])
def test_equals_the_lens_on_prompts(family):
    model, tokens = rs.load(families.make(family)), families.tokens(9, 12)
    profile = lens_profile(model, tokens, n_sampled=None)
    lens = logit_lens(model, tokens)
    body = (slice(None), slice(None), slice(1, -1))
    assert profile.n_tokens.tolist() == [9 * 10, 9]
    for name in ("loss_nats", "kl_nats", "entropy_nats"):
        expected = getattr(lens, name)[body].mean((1, 2))
        np.testing.assert_allclose(profile.reading(name), expected, rtol=1e-6, atol=1e-9)
        sink = getattr(lens, name)[:, :, 0].mean(1)
        np.testing.assert_allclose(
            profile.reading(name, stratum="sink"), sink, rtol=1e-6, atol=1e-9
        )
    best = lens.top_tokens[..., 0]
    same = (best == best[-1])[body].mean((1, 2))
    np.testing.assert_allclose(profile.agreement[:, 0], same)
    assert profile.agreement[-1].tolist() == [1.0, 1.0]
    low, high = np.moveaxis(profile.mean_ci[0], -1, 0)
    assert ((low < profile.reading("loss_nats")) & (profile.reading("loss_nats") < high)).all()


def test_a_sample_reads_as_many_as_asked_and_the_first_of_each():
    model = rs.load(families.make("llama"))
    tokens = families.tokens(10, 20)
    one, again = (lens_profile(model, tokens, n_sampled=40, seed=3) for _ in range(2))
    other = lens_profile(model, tokens, n_sampled=40, seed=4)
    assert one.n_tokens.tolist() == [40, 10]
    np.testing.assert_array_equal(one.mean, again.mean)
    assert not np.array_equal(one.mean, other.mean)
    assert (one.reading("kl_nats")[-1], one.agreement[-1, 0]) == (0.0, 1.0)


def test_needs_a_sample():
    model = rs.load(families.make("llama"))
    with pytest.raises(ConfigError, match="n_sampled must be at least 1"):
        lens_profile(model, families.tokens(), n_sampled=0)


def test_round_trip(tmp_path):
    result = lens_profile(rs.load(families.make("gptj")), families.tokens(1, 5), n_sampled=None)
    again = LensProfileResult.from_json(result.to_json())
    np.testing.assert_array_equal(again.mean_ci, result.mean_ci)  # one document: all NaN
    assert np.isnan(result.mean_ci).all()
    np.testing.assert_array_equal(again.quantiles, result.quantiles)
    assert len(result.to_dataframe()) == 4 * 2
    assert (result.save(tmp_path / "run") / "table.csv").exists()


@pytest.mark.data
def test_memory_stays_flat(data_path):
    model = rs.load(data_path("stories260K"))
    text = data_path("texts/tinyshakespeare.txt")
    corpus = read_corpus(model, text, context=256, max_sequences=200)
    assert corpus.n_tokens > 50_000
    memory: list[float] = []

    def note(done: int, total: int) -> None:
        assert done <= total == 200
        memory.append(_resident_mib())

    lens_profile(model, corpus, n_sampled=None, progress=note)
    early = max(memory[: len(memory) // 4])
    assert memory[-1] <= 1.02 * early, memory


def _resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20
