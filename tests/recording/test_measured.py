"""A native model whose writes measure themselves is recorded with the same numbers."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch

import resstream as rs
from resstream.nn.config import TransformerConfig
from resstream.nn.transformer import ResidualTransformer
from resstream.recording.ledger import WriteSums

TOKENS = torch.randint(0, 40, (3, 9), generator=torch.Generator().manual_seed(0))


def make(rule: Any, **changed: Any) -> ResidualTransformer:
    torch.manual_seed(0)
    shape = {"n_layers": 2, "d_model": 16, "n_heads": 2, "d_vocab": 40, "n_ctx": 16}
    return ResidualTransformer(TransformerConfig(**(shape | changed), rule=rule))


def recorded(module: ResidualTransformer) -> rs.Recording:
    return rs.record(rs.load(module), TOKENS)


@pytest.mark.parametrize("rule", ["plain", "layer_scale", "weighted", "adapter_skip"])
def test_statistics_of_the_write_are_the_recorders(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = make({"kind": rule, "width": 4} if rule == "adapter_skip" else rule)
    wanted = recorded(module)
    module.set_fusion("torch")
    taken: list[bool] = []
    fill = WriteSums.fill_measured

    def filling(self: WriteSums, *arguments: Any) -> bool:
        taken.append(fill(self, *arguments))
        return taken[-1]

    monkeypatch.setattr(WriteSums, "fill_measured", filling)
    found = recorded(module)
    assert taken == ([] if rule == "adapter_skip" else [True] * 4)
    for field in fields(found):
        value = getattr(found, field.name)
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            one = getattr(wanted, field.name)
            assert np.allclose(value, one, rtol=1e-4, atol=1e-6, equal_nan=True), field.name


@pytest.mark.parametrize("placement", ["pre", "sandwich"])
def test_every_row_of_the_table_is_the_same(placement: str) -> None:
    """With a norm behind the sublayer, the kernel's branch is not the sublayer's raw output."""
    module = make("plain", placement=placement)
    wanted = recorded(module).to_dataframe()
    module.set_fusion("torch")
    found = recorded(module).to_dataframe()
    for column in ("mean", "q50"):
        assert np.allclose(found[column], wanted[column], rtol=1e-4, atol=1e-6, equal_nan=True)


def test_a_write_that_is_too_small_to_square_is_summed_apart() -> None:
    module = make("plain")
    with torch.no_grad():
        module.blocks[1].attn.o_proj.weight.mul_(1e-25)  # type: ignore[union-attr]
    wanted = recorded(module).summary("write_norm").median
    module.set_fusion("torch")
    found = recorded(module).summary("write_norm").median
    assert 0 < found[2, 0] < 1e-20
    assert np.allclose(found, wanted, rtol=1e-5)


def test_values_that_are_not_finite_are_found() -> None:
    module = make("plain")
    with torch.no_grad():
        module.blocks[1].mlp.down_proj.weight[3] = torch.nan  # type: ignore[union-attr,index]
    module.set_fusion("torch")
    culprit = recorded(module).first_non_finite
    assert culprit is not None
    assert (culprit.site, culprit.channel) == ("blocks.1.hook_mlp_out", 3)
