"""Weights alone: what is wrong with a matrix beside its peers, and what is not."""

from typing import Any

import pytest
import torch

from resstream.checks.facts import static_findings
from resstream.checks.registry import CODES
from resstream.checks.weights import TensorReader, WeightTable, place_of, read_model_weights
from resstream.stream.faults import inject
from resstream.stream.loading import load
from resstream.stream.model import StreamModel


def outputs(model: StreamModel) -> frozenset[str]:
    return frozenset(w.output_matrix for w in model.spec.writes if w.output_matrix)


def found(model: StreamModel) -> list[tuple[str, str, int | None, str | None]]:
    findings = static_findings(read_model_weights(model), outputs(model), CODES)
    return [(f.code, f.status, f.layer, f.write) for f in findings]


@pytest.fixture
def trained_like(tiny_llama: Any) -> StreamModel:
    """A random model whose matrices have a few strong directions, as trained ones have."""
    module = tiny_llama()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for value in module.model.layers.parameters():
            if value.ndim == 2:
                left = torch.randn(value.shape[0], 3, generator=generator)
                right = torch.randn(3, value.shape[1], generator=generator)
                value += 0.03 * left @ right
    return load(module)


def test_healthy_models_have_no_facts(tiny_llama: Any, trained_like: StreamModel) -> None:
    assert found(load(tiny_llama())) == []
    assert found(trained_like) == []


@pytest.mark.parametrize(
    ("fault", "write", "severity", "expected"),
    [
        ("zero", "attn", None, ("RS401", "confirmed", 3, "attn")),
        ("uniform_attention", "attn", None, ("RS401", "confirmed", 3, "attn")),
        ("rank_one", "mlp", None, ("RS107", "confirmed", 3, "mlp")),
        ("quantize", "mlp", 3, ("RS403", "confirmed", 3, "mlp")),
        ("reinit", "attn", None, ("RS402", "confirmed", 3, "attn")),
        ("bit_flip", "mlp", 30, ("RS404", "confirmed", 3, "mlp")),
        ("nan", "mlp", None, ("RS001", "confirmed", 3, "mlp")),
        ("scale", "mlp", 30, ("RS201", "suspect", 3, "mlp")),
        ("gain_scale", "attn", 1e-3, ("RS102", "suspect", 3, "attn")),
    ],
)
def test_faults_that_weights_show(
    trained_like: StreamModel, fault: str, write: str, severity: float | None, expected: Any
) -> None:
    inject(trained_like, fault, layer=3, write=write, severity=severity)
    assert expected in found(trained_like)
    assert {place[2:] for place in found(trained_like)} == {expected[2:]}


def test_a_duplicate_names_the_later_layer(trained_like: StreamModel) -> None:
    inject(trained_like, "duplicate", layer=2)
    assert found(trained_like) == [("RS406", "confirmed", 3, None)]


def test_gates_that_are_closed_everywhere_are_no_fault(tiny_llama: Any) -> None:
    module = tiny_llama()
    with torch.no_grad():
        for name, value in module.named_parameters():
            if "down_proj" in name or "o_proj" in name:
                value.zero_()
    assert found(load(module)) == []


def test_an_untrained_model_is_not_called_so_layer_by_layer(tiny_llama: Any) -> None:
    codes = {code for code, *_ in found(load(tiny_llama(3)))}
    assert "RS402" not in codes


def test_parts_give_the_same_numbers_as_the_whole() -> None:
    matrix = torch.randn(300, 40, generator=torch.Generator().manual_seed(0))
    matrix[200, 7] = 50.0
    matrix[3, 3] = torch.inf
    whole, parts = TensorReader((300, 40)), TensorReader((300, 40))
    whole.take(matrix)
    for start in range(0, 300, 128):
        parts.take(matrix[start : start + 128])
    one = whole.reading("x", layer=0, role="x", write=None)
    other = parts.reading("x", layer=0, role="x", write=None)
    assert other.peak_at == one.peak_at == (200, 7)
    assert other.n_bad == one.n_bad == 1
    assert (other.peak, other.runner_up, other.digest) == (one.peak, one.runner_up, one.digest)
    assert other.norm == pytest.approx(one.norm, rel=1e-6)
    torch.testing.assert_close(torch.tensor(other.row_norms), torch.tensor(one.row_norms))
    assert other.column_norms == pytest.approx(one.column_norms, rel=1e-5)


def test_the_edge_of_a_random_matrix_is_near_one() -> None:
    for shape in ((64, 64), (64, 512), (512, 64)):
        reader = TensorReader(shape)
        reader.take(torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 0.02)
        assert 0.9 < reader.reading("x", layer=0, role="x", write=None).edge_ratio < 1.03


def test_layers_are_read_from_names() -> None:
    assert place_of("model.layers.12.mlp.down_proj.weight") == (12, "mlp.down_proj.weight")
    assert place_of("transformer.h.0.attn.c_attn.weight") == (0, "attn.c_attn.weight")
    assert place_of("lm_head.weight") == (None, "lm_head.weight")


def test_peers_are_of_one_role_and_shape(tiny_llama: Any) -> None:
    table = read_model_weights(load(tiny_llama()))
    own = table["model.layers.2.mlp.up_proj.weight"]
    assert {peer.role for peer in table.peers(own)} == {"mlp.up_proj.weight"}
    assert {peer.layer for peer in table.peers(own, reach=1)} == {1, 3}
    assert WeightTable([own]).peers(own) == []
