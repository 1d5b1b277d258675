"""With a good checkpoint of the same shape: every changed weight, and the layer that matters."""

from typing import Any

import numpy as np
import pytest
import torch

from resstream.checks.checking import check, check_and_fix
from resstream.checks.comparison import CompareResult, compare
from resstream.checks.remedies import export_fix
from resstream.checks.transplants import changed_parts
from resstream.errors import ConfigError, OutputError
from resstream.stream.faults import inject
from resstream.stream.loading import load
from resstream.stream.model import StreamModel
from resstream.stream.texts import Corpus, read_corpus

IDS = torch.randint(0, 256, (6, 96), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def text() -> Corpus:
    return read_corpus(load("demo"), None, context=64, max_sequences=16)


def damaged_demo(fault: str, layer: int, write: str | None, severity: float | None) -> StreamModel:
    model = load("demo")
    inject(model, fault, layer=layer, write=write, severity=severity)
    model.name = "damaged"
    return model


def test_equal_checkpoints_do_not_differ(tiny_llama: Any) -> None:
    result = compare(load(tiny_llama()), load(tiny_llama()), IDS)
    assert result.differences == ()
    assert result.first_divergence is None
    assert not result.drift.any()
    assert check(load(tiny_llama()), IDS, reference=load(tiny_llama())).verdict == "healthy"


@pytest.mark.parametrize(
    ("fault", "write", "severity"),
    [("bit_flip", "mlp", 3), ("noise", "attn", 0.1), ("quantize", "mlp", 8), ("nan", "attn", None)],
)
def test_every_changed_weight_is_found(
    tiny_llama: Any, fault: str, write: str, severity: float | None
) -> None:
    model = load(tiny_llama())
    inject(model, fault, layer=3, write=write, severity=severity)
    (part,) = changed_parts(model, load(tiny_llama()))
    assert (part.layer, part.write) == (3, write)
    assert len(part.names) == 1
    result = compare(model, load(tiny_llama()), IDS)
    assert result.first_divergence == f"blocks.3.hook_{write}_out"


def test_what_lies_outside_of_blocks_counts_too(tiny_llama: Any) -> None:
    module = tiny_llama()
    with torch.no_grad():
        module.lm_head.weight.mul_(3)
    (difference,) = compare(load(module), load(tiny_llama()), IDS).differences
    assert difference.layer is None
    assert difference.restored < 0


def test_a_victim_has_no_error_of_its_own(tiny_llama: Any) -> None:
    model = load(tiny_llama())
    inject(model, "scale", layer=2, write="mlp", severity=30)
    result = compare(model, load(tiny_llama()), IDS)
    assert [item.layer for item in result.differences] == [2]
    assert result.measure == "divergence"  # random weights predict nothing
    assert result.differences[0].own_error == pytest.approx(29, rel=1e-3)
    assert (result.drift[2:] > 0.1).all()
    assert not result.drift[:2].any()


def test_putting_the_layer_back_gives_the_reference(tiny_llama: Any) -> None:
    """Identity I6: with the fault in one block, the transplant restores the run exactly."""
    model = load(tiny_llama())
    inject(model, "sign_flip", layer=4, write="attn")
    result = compare(model, load(tiny_llama()), IDS)
    assert result.differences[0].after == 0
    assert result.base == pytest.approx(-result.differences[0].restored)


def test_a_result_can_be_read_back(tiny_llama: Any) -> None:
    model = load(tiny_llama())
    inject(model, "scale", layer=2, write="mlp", severity=30)
    result = compare(model, load(tiny_llama()), IDS)
    again = CompareResult.from_json(result.to_json())
    assert again.differences == result.differences
    assert np.array_equal(again.drift, result.drift)
    assert len(result.to_dataframe()) == 1
    assert len(result.plot().data) > 0


def test_another_shape_is_refused(tiny_llama: Any) -> None:
    with pytest.raises(ConfigError, match="must have the shape of the model"):
        compare(load(tiny_llama()), load(tiny_llama(num_hidden_layers=5)), IDS)


def test_the_culprit_is_confirmed_by_the_loss(text: Corpus) -> None:
    model = damaged_demo("sign_flip", 5, "attn", None)
    report = check(model, text, reference=load("demo"))
    first = report.findings[0]
    assert (first.code, first.status) == ("RS601", "confirmed")
    assert (first.layer, first.write) == (5, "attn")
    assert first.evidence[0].ci is not None
    assert first.evidence[0].ci[1] < 0
    assert first.remedy.startswith("restore L5 attn from demo: the loss goes from")


@pytest.mark.parametrize(
    ("fault", "write", "severity"),
    [("scale", "mlp", 16), ("sign_flip", "mlp", None), ("channel_spike", "attn", 50)],
)
def test_fixes_without_a_reference(
    text: Corpus, fault: str, write: str, severity: float | None
) -> None:
    """At least half of what the fault cost comes back, and the best fix is named first."""
    model = damaged_demo(fault, 4, write, severity)
    healthy = check(load("demo"), text, select="RS000").base_loss
    before = model.weights_hash
    report, weights = check_and_fix(model, text)
    assert StreamModel(model.module, name="x").weights_hash == before
    best = next(trial for trial in report.remedies if trial.best)
    assert best.held_out
    assert best.change == pytest.approx(best.loss_after - best.loss_before)
    assert report.findings[0].remedy.startswith(best.remedy)
    matrix = "mlp.down_proj" if write == "mlp" else "attn.o_proj"
    assert list(weights) == [f"model.blocks.4.{matrix}.weight"]
    assert -best.change > 0.5 * (report.base_loss - healthy)


def test_a_repaired_copy(text: Corpus, tmp_path: Any) -> None:
    model = damaged_demo("scale", 4, "mlp", 24)
    broken, weights = check_and_fix(model, text, reference=load("demo"))
    place = export_fix(model, weights, tmp_path / "fixed")
    repaired = load(place)
    assert changed_parts(repaired, load("demo")) == []
    assert check(repaired, text, remedies=False).base_loss < broken.base_loss - 1
    with pytest.raises(OutputError, match="holds a checkpoint already"):
        export_fix(model, weights, place)
    with pytest.raises(ConfigError, match="no fix to export"):
        export_fix(model, {}, tmp_path / "other")
