"""Facts come first, and what only the loss says about others is doubted while they stand."""

import math
from typing import Any

import pytest
import torch

from resstream.checks.blame import weigh
from resstream.checks.checking import check
from resstream.checks.report import Finding, Severity, Status
from resstream.nn.config import TransformerConfig
from resstream.nn.transformer import ResidualTransformer
from resstream.stream.faults import inject
from resstream.stream.loading import load
from resstream.stream.texts import read_corpus


def finding(
    code: str,
    layer: int,
    write: str | None = "mlp",
    status: Status = "confirmed",
    severity: Severity = "error",
) -> Finding:
    return Finding(
        code=code,
        status=status,
        severity=severity,
        layer=layer,
        write=write,
        site=None,
        statement="it is so",
        evidence=(),
        remedy="",
    )


def test_harm_is_doubted_beside_a_fact() -> None:
    harm, large = finding("RS203", 5), finding("RS201", 5)
    doubted, kept = weigh([harm, large], [finding("RS101", 2, "attn")])
    assert doubted.status == "suspect"
    assert "layer 2 attn (RS101)" in doubted.statement
    assert kept == large


@pytest.mark.parametrize(
    "fact",
    [finding("RS402", 2, status="suspect"), finding("RS601", 2, severity="info")],
)
def test_suspicions_and_remarks_explain_nothing(fact: Finding) -> None:
    harm = finding("RS203", 5)
    assert list(weigh([harm], [fact])) == [harm]


def test_what_a_fact_says_is_not_said_again() -> None:
    fact = finding("RS401", 2)
    assert list(weigh([finding("RS203", 2)], [fact])) == []


def test_a_dead_write_comes_before_the_harm_that_it_does() -> None:
    demo = load("demo")
    inject(demo, "zero", layer=3, write="attn")
    report = check(demo, read_corpus(demo, None, max_sequences=16), remedies=False)
    confirmed = [(f.code, f.layer, f.write) for f in report.findings if f.status == "confirmed"]
    assert confirmed == [("RS101", 3, "attn")]


def test_a_weight_that_drowns_the_stream_is_not_blamed_on_those_it_silences(
    tiny_llama: Any,
) -> None:
    module = tiny_llama(6)
    with torch.no_grad():
        module.model.layers[2].mlp.down_proj.weight[3, 7] = 1e30  # squared, it is infinite
    findings = check(load(module), [[5, 6, 7, 8, 9, 10]], remedies=False).findings
    confirmed = [(f.code, f.layer, f.write) for f in findings if f.status == "confirmed"]
    assert confirmed == [("RS404", 2, "mlp")]


def test_a_weight_that_makes_a_later_layer_overflow_is_the_culprit() -> None:
    torch.manual_seed(0)
    rule = {"kind": "rezero", "alpha": 1.0}
    module = ResidualTransformer(
        TransformerConfig(n_layers=6, d_model=32, n_heads=4, d_vocab=64, n_ctx=16, rule=rule)
    )
    model = load(module)
    name = model.spec.blocks[2].writes[1].output_matrix
    assert name is not None
    with torch.no_grad():
        module.get_parameter(name)[3, 7] = 1e25
    first, second, *_ = check(model, [[5, 6, 7, 8, 9, 10]], remedies=False).findings
    assert (first.code, first.layer, first.write) == ("RS404", 2, "mlp")
    assert second.code == "RS001"
    growth = second.evidence[1].value
    assert math.isfinite(growth)
    assert growth > 1e6
    assert "already L2 mlp before it writes" in second.statement
