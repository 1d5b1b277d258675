"""Which tokens are sinks."""

import numpy as np
import pytest

from resstream.recording.strata import FACTOR, MOST, stratify

BODY, SINK = 0, 1


def norms(depth: int = 9, batch: int = 2, pos: int = 100) -> np.ndarray:
    return np.random.default_rng(0).uniform(1.0, 2.0, (depth, batch, pos))


def test_the_first_token_is_a_sink_and_no_other_of_a_quiet_text() -> None:
    strata = stratify(norms())
    assert (strata[:, 0] == SINK).all()
    assert (strata[:, 1:] == BODY).all()


def test_a_massive_token_in_the_middle_of_the_network_is_a_sink() -> None:
    streams = norms()
    streams[4, 1, 30] *= 2 * FACTOR
    strata = stratify(streams)
    assert strata[1, 30] == SINK
    assert (strata == SINK).sum() == 3


@pytest.mark.parametrize("depth", [0, 1, 8])
def test_the_ends_of_the_network_do_not_count(depth: int) -> None:
    streams = norms()
    streams[depth, 1, 30] *= 1e4
    assert stratify(streams)[1, 30] == BODY


def test_the_rule_has_no_unit() -> None:
    streams = norms()
    streams[3:6, 0, [7, 50]] *= 40.0
    np.testing.assert_array_equal(stratify(streams), stratify(1e-6 * streams))
    assert stratify(streams)[0, [7, 50]].tolist() == [SINK, SINK]


def test_a_damaged_model_can_not_move_its_text_out_of_sight() -> None:
    streams = norms()
    streams[:, :, 50:90] *= np.linspace(100, 200, 40)
    strata = stratify(streams)
    per_sequence = (strata == SINK).sum(1)
    assert per_sequence.tolist() == [1 + MOST * 100] * 2
    largest = np.argsort(-streams[2:7, 0].max(0))[:5]
    assert (strata[0, largest] == SINK).all(), "the largest are taken"


def test_all_tokens_larger_alike_is_no_sink() -> None:
    streams = norms()
    streams[3:] *= 1e5
    assert (stratify(streams)[:, 1:] == BODY).all()


def test_the_first_token_takes_no_place_of_another() -> None:
    streams = norms(pos=10)  # one massive token may be found in ten
    streams[4, :, 0] *= 1e4
    streams[4, 0, 6] *= 100
    assert stratify(streams)[0, 6] == SINK


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_tokens_that_are_not_finite_stay_in_the_body(value: float) -> None:
    streams = norms()
    streams[2:, 0, 40:] = value
    streams[:, 1] = value
    strata = stratify(streams)
    assert (strata[0, 40:] == BODY).all()
    assert (strata[1, 1:] == BODY).all()


def test_one_token_and_no_depth_are_no_trouble() -> None:
    assert stratify(np.ones((1, 1, 1))).tolist() == [[SINK]]
    assert stratify(np.zeros((2, 1, 3))).tolist() == [[SINK, BODY, BODY]]
