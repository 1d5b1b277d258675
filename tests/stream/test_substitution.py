"""Other weights for a while: they act, and leave no trace."""

from typing import Any

import pytest
import torch

from resstream.errors import ConfigError
from resstream.stream.loading import load
from resstream.stream.substitution import substituted

IDS = torch.randint(0, 256, (2, 16), generator=torch.Generator().manual_seed(0))
NAME = "model.layers.2.mlp.down_proj.weight"


def test_other_weights_act_and_go(tiny_llama: Any) -> None:
    model, twin = load(tiny_llama()), tiny_llama()
    clean = model.forward(IDS)
    own = model.module.get_parameter(NAME).data
    with torch.no_grad():
        twin.get_parameter(NAME).zero_()
        with substituted(model.module, {NAME: torch.zeros_like(own)}):
            assert torch.equal(model.forward(IDS), load(twin).forward(IDS))
    assert model.module.get_parameter(NAME).data_ptr() == own.data_ptr()
    assert torch.equal(model.forward(IDS), clean)


def test_weights_come_back_after_an_error(tiny_llama: Any) -> None:
    model = load(tiny_llama())
    before = model.module.get_parameter(NAME).data_ptr()
    with (
        pytest.raises(RuntimeError, match="stop"),
        substituted(model.module, {NAME: torch.zeros(64, 128)}),
    ):
        raise RuntimeError("stop")
    assert model.module.get_parameter(NAME).data_ptr() == before


def test_wrong_names_and_shapes_are_refused(tiny_llama: Any) -> None:
    module = tiny_llama()
    with (
        pytest.raises(ConfigError, match="no parameter 'nothing'"),
        substituted(module, {"nothing": torch.zeros(1)}),
    ):
        pass
    with (
        pytest.raises(ConfigError, match=r"must have the shape \(64, 128\), got \(1,\)"),
        substituted(module, {NAME: torch.zeros(1)}),
    ):
        pass
