"""Patching: identities, metrics, what is refused, and what is said of several pairs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import resstream as rs
from resstream.analysis.pairs import Pair, encode_pairs, read_pairs
from resstream.analysis.patching import prepare, run_prepared
from resstream.errors import ConfigError, TextError, UnknownSiteError, UnsupportedModelError
from resstream.sweep.grid import GridOptions
from resstream.sweep.journal import Journal
from resstream.sweep.memory import parse_memory, show_bytes
from tests.analysis import families

SITES = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out", "head_out")


@pytest.fixture(scope="module")
def model() -> rs.StreamModel:
    return rs.load(families.make("llama"), tokenizer=families.tokenizer())


def pair(length: int = 6, place: int = 2, seed: int = 0, **changes: Any) -> dict[str, Any]:
    clean = families.tokens(1, length, seed)[0].tolist()
    corrupted = list(clean)
    if place < length:
        corrupted[place] = (corrupted[place] + 7) % families.VOCABULARY
    return {"clean": clean, "corrupted": corrupted, "answer": 5, "wrong": 9} | changes


@pytest.mark.parametrize("site", SITES)
@settings(
    max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 1000), length=st.integers(2, 8))
def test_clean_into_clean_changes_nothing(
    model: rs.StreamModel, site: Any, seed: int, length: int
) -> None:
    same = pair(length, place=length, seed=seed)
    result = rs.patch(model, same, site=site)
    assert result.computed == 0
    assert not result.effects.any()
    assert result.normalised is None
    run = rs.patch(model, same, site=site, skip_unchanged=False)
    assert run.computed == result.skipped
    assert np.abs(run.effects).max() < 1e-5


@settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 1000), place=st.integers(0, 4))
def test_ends_agree_with_the_unchanged_runs(model: rs.StreamModel, seed: int, place: int) -> None:
    """Where one position carries all the difference, patching it gives the other run."""
    one = pair(5, place=place, seed=seed)
    denoised = rs.patch(model, one, direction="denoising")
    noised = rs.patch(model, one, direction="noising")
    assert denoised.clean == pytest.approx(noised.clean, abs=1e-5)
    span = denoised.clean - denoised.corrupted
    assert denoised.effects[0, place] == pytest.approx(span, abs=1e-4)
    assert noised.effects[0, place] == pytest.approx(-span, abs=1e-4)
    assert not denoised.effects[:, :place].any()
    if denoised.normalised is not None and noised.normalised is not None:
        assert denoised.normalised[0, place] == pytest.approx(1.0, abs=1e-3)
        assert noised.normalised[0, place] == pytest.approx(0.0, abs=1e-3)


def test_last_stream_at_the_last_position_is_the_other_run(model: rs.StreamModel) -> None:
    result = rs.patch(model, pair(), site="resid_post")
    assert result.effects[-1, -1] == pytest.approx(result.clean - result.corrupted, abs=1e-4)
    assert not result.effects[-1, :-1].any()


def test_heads_of_a_linear_projection_add_up_to_first_order(model: rs.StreamModel) -> None:
    """All heads of one place patched one by one leave the rest of the write where it was."""
    heads = rs.patch(model, pair(), site="head_out")
    assert heads.effects.shape == (3, 6, 4)
    assert heads.computed + heads.skipped == heads.effects.size
    with pytest.raises(UnsupportedModelError, match="use its whole writes instead"):
        rs.patch(rs.load(families.make("mamba")), pair(), site="head_out")


@pytest.mark.parametrize("metric", ["logit_diff", "probability", "rank", "kl"])
def test_metrics_are_what_they_say(model: rs.StreamModel, metric: Any) -> None:
    one = pair()
    result = rs.patch(model, one, metric=metric)
    with torch.no_grad():
        logits = [
            model.forward(torch.tensor([one[k]]))[0, -1].double() for k in ("clean", "corrupted")
        ]
    clean, corrupted = logits
    wanted = {
        "logit_diff": lambda x: x[5] - x[9],
        "probability": lambda x: x.softmax(0)[5],
        "rank": lambda x: 1 + (x > x[5]).sum(),
        "kl": lambda x: (clean.softmax(0) * (clean.log_softmax(0) - x.log_softmax(0))).sum(),
    }[metric]
    assert result.clean == pytest.approx(float(wanted(clean)), abs=1e-5)
    assert result.corrupted == pytest.approx(float(wanted(corrupted)), abs=1e-5)


def test_pairs_of_several_lengths_stand_with_their_ends_in_line(model: rs.StreamModel) -> None:
    many = [pair(5, 1, seed=1), pair(7, 3, seed=2), pair(7, 2, seed=3)]
    result = rs.patch(model, many)
    single = [rs.patch(model, one) for one in many]
    assert result.effects.shape == (3, 7)
    last = np.mean([one.effects[:, -1] for one in single], axis=0)
    assert np.allclose(result.effects[:, -1], last, atol=1e-5)
    first = np.mean([np.zeros(3), single[1].effects[:, 0], single[2].effects[:, 0]], axis=0)
    assert np.allclose(result.effects[:, 0], first, atol=1e-5)
    assert result.ci_low is not None and result.ci_high is not None
    assert (result.ci_low <= result.effects + 1e-9).all()
    assert (result.effects <= result.ci_high + 1e-9).all()
    assert "counted from the end" in " ".join(result.warnings)
    assert [item.n_tokens for item in result.pairs] == [5, 7, 7]


def test_a_vanishing_denominator_is_refused(model: rs.StreamModel) -> None:
    result = rs.patch(model, pair(place=6))
    assert result.normalised is None
    assert result.normalised_refused is not None
    assert "must differ by at least 0.5" in result.normalised_refused
    assert "the same in pair 1" in result.warnings[0]


def test_unequal_lengths_are_refused_where_they_first_differ(model: rs.StreamModel) -> None:
    with pytest.raises(TextError, match=r"got 3 and 4; they first differ at position 1, 'w5'"):
        rs.patch(model, {"clean": "w4 w5 w6", "corrupted": "w4 w7 w8 w6", "answer": 5, "wrong": 9})


def test_answers_are_looked_at(model: rs.StreamModel) -> None:
    texts = {"clean": "w4 w5 w6", "corrupted": "w4 w7 w6"}
    (one,) = encode_pairs(model, read_pairs(texts | {"answer": "w5 w6", "wrong": "w9"}))
    assert (one.answer, one.wrong) == (5, 9)
    assert "is 2 tokens; only the first, 'w5', is measured" in one.warnings[0]
    with pytest.raises(TextError, match="begin with the same token"):
        rs.patch(model, texts | {"answer": "w5 w6", "wrong": "w5"})
    with pytest.raises(TextError, match="has no 'wrong'"):
        rs.patch(model, texts | {"answer": "w5"})
    assert rs.patch(model, texts | {"answer": "w5"}, metric="probability").clean > 0
    assert rs.patch(model, texts, metric="kl").clean == pytest.approx(0.0, abs=1e-6)


class Spaced:
    """A tokenizer in which a word with its space is another token."""

    words = ("", "she", " she", " the")

    def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
        del options
        return {"input_ids": [self.words.index(text)] if text in self.words else [1, 1, 1]}

    def convert_ids_to_tokens(self, index: int) -> str:
        return self.words[index]


def test_missing_leading_space_is_warned_about() -> None:
    own = rs.load(families.make("llama"), tokenizer=Spaced())
    one = Pair(clean=[4, 5], corrupted=[4, 6], answer=" the", wrong="she")
    (encoded,) = encode_pairs(own, [one])
    assert len(encoded.warnings) == 1
    assert "wrong 'she' has no leading space" in encoded.warnings[0]
    assert (encoded.answer, encoded.wrong) == (3, 1)


def test_noise_corrupts_the_embedding_and_is_warned_about(model: rs.StreamModel) -> None:
    """Against hooks that add the same noise, in both directions; and to first order."""
    one = {"clean": [7, 3, 8, 9, 11], "noise": 2.0, "noised": [1, 2], "answer": 5, "wrong": 9}
    (encoded,) = encode_pairs(model, read_pairs(one))
    noise = encoded.noise
    assert noise is not None
    assert noise.any(-1).tolist() == [False, True, True, False, False]
    kept: dict[str, torch.Tensor] = {}

    def measure(hooks: dict[str, Any]) -> float:
        with torch.no_grad():
            logits = model.run(encoded.clean[None], hooks)[0, -1]
        return float(logits[5] - logits[9])

    def add(value: torch.Tensor) -> torch.Tensor:
        return value + noise

    def put(value: torch.Tensor) -> torch.Tensor:
        value = value.clone()
        value[0, 2] = kept["clean"][0, 2]
        return value

    site = "blocks.1.hook_mlp_out"
    clean = measure({site: lambda value: kept.update(clean=value.clone())})
    noisy = measure({"blocks.0.hook_resid_pre": add})
    patched = measure({"blocks.0.hook_resid_pre": add, site: put})
    result = rs.patch(model, one, site="mlp_out")
    assert (result.clean, result.corrupted) == pytest.approx((clean, noisy), abs=1e-5)
    assert result.effects[1, 2] == pytest.approx(patched - noisy, abs=1e-5)
    assert abs(patched - noisy) > 1e-4
    assert not result.effects[:, 0].any()
    assert "off its distribution" in result.warnings[0]
    noising = rs.patch(model, one, direction="noising")
    assert noising.clean == pytest.approx(clean, abs=1e-5)
    small = {**one, "noise": 1e-3}
    exact = rs.patch(model, small, site="mlp_out").effects
    estimate = rs.attribution_patch(model, small, site="mlp_out").estimates
    assert np.abs(estimate - exact).max() < 0.05 * np.abs(exact).max()


def test_paths_need_tokens(model: rs.StreamModel) -> None:
    one = {"clean": [7, 3, 8, 9, 11], "noise": 1.0, "answer": 5, "wrong": 9}
    with pytest.raises(TextError, match="path patching needs corrupted prompts"):
        rs.path_patch(model, one)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"noise": -1.0}, "noise must be a number above 0, got -1.0"),
        ({"noise": 1.0, "noised": [9]}, r"noised must be positions in 0..4"),
        ({"noise": 1.0, "noised": "1-2"}, r"noised must be positions in 0..4"),
        ({"noise": "much"}, "noise must be a number above 0, got 'much'"),
        ({"noise": 1.0, "corrupted": [1, 2, 3, 4, 5]}, "both 'corrupted' and 'noise'"),
        ({}, "has no field 'corrupted'"),
    ],
)
def test_noise_that_makes_no_sense(
    model: rs.StreamModel, changes: dict[str, Any], said: str
) -> None:
    one = {"clean": [7, 3, 8, 9, 11], "answer": 5, "wrong": 9}
    with pytest.raises(TextError, match=said):
        rs.patch(model, one | changes)


def test_unknown_options_are_named(model: rs.StreamModel) -> None:
    with pytest.raises(ConfigError, match="metric must be one of logit_diff"):
        rs.patch(model, pair(), metric="loss")  # type: ignore[arg-type]
    for layers, said in (([3], r"0\.\.2, got 3"), ([1.5], "got 1.5"), ([], "got \\[\\]")):
        with pytest.raises(ConfigError, match=said):
            rs.patch(model, pair(), layers=layers)  # type: ignore[arg-type]
    for other in (rs.attribution_patch, rs.path_patch):
        with pytest.raises(ConfigError, match="metric must be one of logit_diff"):
            other(model, pair(), metric="loss")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="direction must be one of denoising"):
            other(model, pair(), direction="up")  # type: ignore[arg-type]
    with pytest.raises(UnknownSiteError, match="has no resid_mid; layer 0 has resid_pre"):
        rs.patch(rs.load(families.make("gptj")), pair(), site="resid_mid")
    with pytest.raises(ConfigError, match=r"needs .* of memory"):
        rs.patch(model, pair(), memory=1000)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"answer": True}, "must be a text or a token id, got True"),
        ({"answer": [" a"]}, "must be a text or a token id"),
        ({"answer": 1.5}, "must be a text or a token id, got 1.5"),
        ({"answer": "\ud800"}, "half a character"),
        ({"clean": ""}, "clean must not be empty"),
        ({"clean": [1] * 5000, "corrupted": [2] * 5000}, "takes .* tokens, got a prompt of 5000"),
    ],
)
def test_odd_values_are_refused(model: rs.StreamModel, changes: Any, said: str) -> None:
    with pytest.raises(TextError, match=said):
        rs.patch(model, pair(**changes))


@pytest.mark.parametrize("pairs", [None, 5])
def test_what_is_no_pair_is_refused(model: rs.StreamModel, pairs: Any) -> None:
    with pytest.raises(TextError, match="pairs must be a Pair, a mapping"):
        rs.patch(model, pairs)


def test_few_pairs_are_warned_about(model: rs.StreamModel) -> None:
    result = rs.patch(model, [pair(seed=seed) for seed in (0, 1)])
    assert "intervals over 2 pairs say little; give 5 or more" in result.warnings
    assert not rs.patch(model, [pair(seed=seed) for seed in range(5)]).warnings


def test_files_of_pairs(tmp_path: Path) -> None:
    row = {"clean": "a b", "corrupt": "a c", "answer": " x", "wrong": " y"}
    wanted = [Pair(clean="a b", corrupted="a c", answer=" x", wrong=" y")]
    (tmp_path / "p.json").write_text(json.dumps({"prompts": [row]}))
    (tmp_path / "p.jsonl").write_text(json.dumps(row) + "\n\n")
    (tmp_path / "p.csv").write_text("clean,corrupted,answer,wrong\na b,a c, x, y\n")
    for name in ("p.json", "p.jsonl", "p.csv"):
        assert read_pairs(tmp_path / name) == wanted
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "none.json").write_text("[]")
    (tmp_path / "field.jsonl").write_text('{"prompt": "a"}')
    for name, said in (
        ("bad.json", "is no readable json"), ("none.json", "at least one"),
        ("field.jsonl", "row 1 has no field 'clean'; it has prompt"), ("no.json", "cannot read"),
        ("p.txt", "must end in"),
    ):  # fmt: skip
        with pytest.raises(TextError, match=said):
            read_pairs(tmp_path / name)


def test_the_prompts_of_the_test_data_are_read(data_path: Any) -> None:
    pairs = read_pairs(data_path("prompts/smollm2_demo_pairs.json"))
    assert len(pairs) == 43
    assert pairs[0].answer == " name"
    assert read_pairs(data_path("prompts/sva_simple_test.jsonl"))[0].wrong == " have"


def test_screening_runs_the_most_promising(model: rs.StreamModel) -> None:
    full, some = rs.patch(model, pair()), rs.patch(model, pair(), screen=4)
    assert some.screening is not None and some.estimates is not None
    assert some.screening.k == 4 == int(np.isfinite(some.effects).sum())
    run = np.isfinite(some.effects)
    assert np.allclose(some.effects[run], full.effects[run], atol=1e-5)
    sizes = np.abs(some.estimates)
    assert sizes[run].min() >= sizes[~run].max()


def test_a_resumed_sweep_is_bitwise_the_uninterrupted_one(
    model: rs.StreamModel, tmp_path: Path
) -> None:
    many = [pair(6, 1, seed=seed) for seed in range(3)] + [pair(7, 2, seed=9)]
    memory = parse_memory("200MiB")

    def begin() -> Any:
        return prepare(model, many, options=GridOptions(memory=memory, skip_unchanged=False))

    whole = run_prepared(*begin(), journal=Journal(tmp_path / "whole", resume=False))
    seen = 0

    def interrupt(done: int, total: int) -> None:
        nonlocal seen
        seen += 1
        if done > 0.9 * total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_prepared(*begin(), journal=Journal(tmp_path / "part", resume=False), progress=interrupt)
    kept = list((tmp_path / "part").glob("*.npy"))
    assert kept, "what was finished is kept"
    assert len(kept) < len(list((tmp_path / "whole").glob("*.npy")))
    resumed = run_prepared(*begin(), journal=Journal(tmp_path / "part", resume=True))
    assert np.array_equal(resumed.effects, whole.effects)
    other = prepare(model, many, direction="noising")
    with pytest.raises(ConfigError, match="begun with other direction"):
        run_prepared(*other, journal=Journal(tmp_path / "part", resume=True))


def test_small_memory_gives_the_same_in_more_chunks(model: rs.StreamModel) -> None:
    many = [pair(6, 1, seed=seed) for seed in range(4)]
    wide = rs.patch(model, many, memory=parse_memory("1GiB"))
    least = prepare(model, many, options=GridOptions(memory=parse_memory("1GiB")))[0]
    tight = least.plan().memory_bytes - 4_000
    narrow = rs.patch(model, many, memory=tight)
    assert np.allclose(wide.effects, narrow.effects, atol=1e-5)


def test_plan_counts_what_the_run_computes(model: rs.StreamModel) -> None:
    grid, encoded = prepare(model, pair(), options=GridOptions(skip_unchanged=False))
    plan, result = grid.plan(), run_prepared(grid, encoded)
    assert plan.variants == result.computed == 18
    assert plan.layer_tokens == result.layer_tokens
    assert plan.naive_layer_tokens == 18 * 3 * 6
    assert plan.suffixes


def test_result_survives_saving(model: rs.StreamModel, tmp_path: Path) -> None:
    result = rs.patch(model, [pair(), pair(seed=4)], site="head_out")
    back = rs.load_result(result.save(tmp_path / "r"))
    assert isinstance(back, rs.PatchResult)
    assert np.array_equal(back.effects, result.effects)
    assert len(result.to_dataframe()) == result.effects.size
    plain = json.loads(result.to_json())
    contract = {"schema", "provenance", "tokens", "clean", "corrupted", "effects", "normalised"}
    assert contract | {"computed", "skipped"} <= set(plain)
    assert result.plot().data[0].z.shape == (3, 4)
    assert rs.patch(model, pair()).plot().data[0].z.shape == (3, 6)


def test_sizes_of_memory() -> None:
    assert parse_memory("4GiB") == 4 * 2**30
    assert parse_memory("1.5 mb") == int(1.5 * 2**20)
    assert show_bytes(3 * 2**30) == "3.0 GiB"
    for text in ("", "four", "0", "-1GiB", "3XB"):
        with pytest.raises(ConfigError, match="memory must be a size"):
            parse_memory(text)
