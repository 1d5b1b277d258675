"""Repairs that are more than a factor: noise taken off a matrix, heads put back in order."""

import math
from typing import Any

import pytest
import torch

import resstream as rs
from resstream.checks.checking import check
from resstream.checks.repairs import denoised_output, output_weight
from resstream.stream.faults import inject
from resstream.stream.loading import load
from resstream.stream.model import StreamModel
from resstream.stream.texts import read_corpus


def confirmed(model: StreamModel, text: Any = None) -> list[tuple[str, int | None, str | None]]:
    report = check(model, read_corpus(model, text, max_sequences=16), remedies=False)
    return [(f.code, f.layer, f.write) for f in report.findings if f.status == "confirmed"]


def test_noise_is_taken_off_a_matrix_of_low_rank(tiny_llama: Any) -> None:
    model = load(tiny_llama())
    write = next(write for write in model.spec.writes if write.label == "L2 mlp")
    generator = torch.Generator().manual_seed(3)
    own = output_weight(model, write)
    assert own is not None
    rows, columns = own.shape
    left, right = (torch.randn(side, 3, generator=generator) for side in (rows, columns))
    signal, noise = left @ right.T, torch.randn(rows, columns, generator=generator)
    with torch.no_grad():
        own.copy_(signal + noise)
    (cleaned,) = denoised_output(model, write).values()
    assert int(torch.linalg.matrix_rank(cleaned, rtol=1e-4)) == 3
    left_over = torch.linalg.matrix_norm(cleaned - signal) / torch.linalg.matrix_norm(noise)
    # Of noise of variance 1, three directions of an m x n matrix keep 3 (m + n - 3) of m n.
    assert float(left_over) < 1.3 * math.sqrt(3 * (rows + columns - 3) / (rows * columns))


def test_pure_noise_leaves_nothing(tiny_llama: Any) -> None:
    model = load(tiny_llama())
    write = model.spec.writes[1]
    own = output_weight(model, write)
    assert own is not None
    with torch.no_grad():
        own.copy_(torch.randn(own.shape, generator=torch.Generator().manual_seed(4)))
    (cleaned,) = denoised_output(model, write).values()
    assert float(torch.linalg.matrix_norm(cleaned)) < 0.3 * float(torch.linalg.matrix_norm(own))


@pytest.mark.parametrize("layer", [3, 4])
def test_heads_in_another_order_are_told_by_weights_and_loss(layer: int) -> None:
    model = load("demo")
    inject(model, "permute_heads", layer=layer, write="attn")
    assert confirmed(model) == [("RS405", layer, "attn")]


def test_a_text_that_the_model_cannot_read_is_no_bill_of_health() -> None:
    report = rs.check(load("demo"), "the the the " * 900, remedies=False)
    assert report.verdict == "inconclusive"
    (finding,) = report.findings
    assert (finding.code, finding.status) == ("RS000", "abstained")
    assert "no better than chance (10.4 nats per token, log of the vocabulary" in finding.statement
