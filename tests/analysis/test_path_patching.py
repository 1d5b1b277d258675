"""Path patching: what must hold of direct effects."""

import numpy as np
import pytest
import torch

import resstream as rs
from resstream.analysis.path_patching import PathPatchResult, path_patch
from resstream.errors import UnknownSiteError
from tests.analysis import families

PAIR = {"clean": [7, 3, 8, 9, 11], "corrupted": [7, 4, 8, 9, 11], "answer": 5, "wrong": 9}


@pytest.fixture(scope="module")
def model() -> rs.StreamModel:
    return rs.load(families.make("llama").double())


def test_only_later_writes_are_reached(model: rs.StreamModel) -> None:
    result = path_patch(model, PAIR)
    assert result.receivers == (*result.senders, "logits")
    reached = np.isfinite(result.effects)
    assert np.array_equal(reached[:, :-1], np.triu(np.ones((6, 6), bool), k=1))
    assert reached[:, -1].all()
    parallel = path_patch(rs.load(families.make("gptj")), PAIR)
    assert np.isnan(parallel.effects[0, 1])  # both writes of a parallel block read the same stream


def test_last_write_acts_on_the_answer_directly(model: rs.StreamModel) -> None:
    """Nothing comes between the last write and the readout, so its path is all it does."""
    direct = path_patch(model, PAIR).effects[-1, -1]
    exact = rs.patch(model, PAIR, site="mlp_out").effects[-1, -1]
    assert direct == pytest.approx(exact, abs=1e-9)


def test_a_path_is_what_hooks_make_of_it(model: rs.StreamModel) -> None:
    """Attention of layer 0 into the MLP of layer 2, by hand."""
    clean, corrupted = (torch.tensor([PAIR[name]]) for name in ("clean", "corrupted"))
    values: dict[str, torch.Tensor] = {}

    def keep(name: str):
        return lambda value: values.update({name: value.clone()})

    sender, receiver = "blocks.0.attn_out", "blocks.2.mlp_out"
    with torch.no_grad():
        model.run(clean, {sender: keep("clean")})
        before = model.run(corrupted, {sender: keep("own"), "blocks.2.resid_mid": keep("mid")})
        read = values["mid"] + values["clean"] - values["own"]
        # What the MLP writes when it alone reads the changed stream.
        model.run(corrupted, {"blocks.2.resid_mid": lambda value: read, receiver: keep("write")})
        after = model.run(corrupted, {receiver: lambda value: values["write"]})

    def metric(logits: torch.Tensor) -> float:
        return float(logits[0, -1, 5] - logits[0, -1, 9])

    result = path_patch(model, PAIR, senders=[sender], receivers=[receiver])
    assert result.effects.shape == (1, 2)
    assert result.effects[0, 0] == pytest.approx(metric(after) - metric(before), abs=1e-6)
    assert abs(result.effects[0, 0]) > 1e-5


def test_it_can_be_read_back_and_refuses_other_names(model: rs.StreamModel) -> None:
    result = path_patch(model, PAIR, senders=["blocks.*.attn_out"])
    back = PathPatchResult.from_json(result.to_json())
    assert np.array_equal(back.effects, result.effects, equal_nan=True)
    assert len(result.to_dataframe()) == int(np.isfinite(result.effects).sum())
    assert result.plot().data[0].z.shape == result.effects.shape
    with pytest.raises(UnknownSiteError):
        path_patch(model, PAIR, senders=["blocks.9.attn_out"])
