"""Verdicts: the right write and kind, victims left alone, healthy models called healthy."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from resstream.analysis.losses import mean_loss
from resstream.checks.checking import check
from resstream.checks.experiments import clip_channel
from resstream.checks.readings import neighbours_of
from resstream.checks.report import CheckReport
from resstream.errors import ConfigError, UnsupportedModelError
from resstream.stream.faults import inject
from resstream.stream.loading import load
from resstream.stream.model import StreamModel
from resstream.stream.texts import read_corpus

SEEDS = range(5)
IDS = torch.randint(0, 256, (6, 96), generator=torch.Generator().manual_seed(0))


def found(report: CheckReport) -> list[tuple[str, int | None, str | None]]:
    return [(f.code, f.layer, f.write) for f in report.findings if f.status == "confirmed"]


@pytest.mark.parametrize("seed", SEEDS)
def test_healthy_random_models(tiny_llama: Any, seed: int) -> None:
    report = check(load(tiny_llama(seed)), IDS)
    assert report.verdict == "healthy"
    assert report.findings == ()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("fault", ["scale", "gain_scale"])
def test_a_collapsed_layer(tiny_llama: Any, seed: int, fault: str) -> None:
    model = load(tiny_llama(seed))
    for write in ("attn", "mlp"):
        inject(model, fault, layer=3, write=write, severity=1e-3)
    report = check(model, IDS)
    assert found(report) == [("RS102", 3, "attn"), ("RS102", 3, "mlp")]
    assert len(report.findings) == 2


@pytest.mark.parametrize("seed", SEEDS)
def test_a_polluted_stream_and_no_victim_accused(tiny_llama: Any, seed: int) -> None:
    model = load(tiny_llama(seed))
    inject(model, "scale", layer=3, write="mlp", severity=30)
    report = check(model, IDS)
    assert found(report) == [("RS201", 3, "mlp")]
    assert len(report.findings) == 1
    recovery = report.findings[0].evidence[-1]
    assert "later writes" in recovery.name
    assert recovery.value > 2  # beside the polluted stream the later writes look small


def test_a_write_that_is_exactly_zero(tiny_llama: Any) -> None:
    model = load(tiny_llama())
    inject(model, "zero", layer=2, write="attn")
    report = check(model, IDS)
    assert found(report) == [("RS101", 2, "attn")]
    assert report.findings[0].severity == "error"


def test_writes_that_are_all_zero_are_alike(tiny_llama: Any) -> None:
    """A model that is born with closed gates (ReZero) has no dead layer."""
    module = tiny_llama()
    with torch.no_grad():
        for name, value in module.named_parameters():
            if "down_proj" in name or "o_proj" in name:
                value.zero_()
    assert check(load(module), IDS).findings == ()


def test_not_finite_names_the_first_culprit(tiny_llama: Any) -> None:
    model = load(tiny_llama())
    inject(model, "nan", layer=4, write="mlp")
    report = check(model, IDS)
    assert found(report) == [("RS001", 4, "mlp")]
    assert report.verdict == "findings"
    assert "token 0" in report.findings[0].statement
    assert '"nan"' in report.to_json()


def test_a_readout_that_makes_nan_is_found(tiny_llama: Any) -> None:
    module = tiny_llama()
    with torch.no_grad():
        module.lm_head.weight[3, 4] = torch.nan
    report = check(load(module), IDS)
    assert found(report) == [("RS001", None, None)]
    assert "the readout makes them" in report.findings[0].statement


def test_too_little_text_abstains_and_says_how_much(tiny_llama: Any) -> None:
    report = check(load(tiny_llama()), IDS[:1, :12])
    assert report.verdict == "inconclusive"
    assert [(f.code, f.status) for f in report.findings] == [("RS000", "abstained")]
    assert "at least 400 in 4 are needed" in report.findings[0].statement
    assert report.confirmed("info") == ()


def test_rules_can_be_chosen(tiny_llama: Any) -> None:
    model = load(tiny_llama())
    inject(model, "scale", layer=3, write="mlp", severity=30)
    assert check(model, IDS, ignore=["RS201"]).findings == ()
    assert found(check(model, IDS, select=["RS201"])) == [("RS201", 3, "mlp")]
    with pytest.raises(ConfigError, match="unknown rule 'RS999'; there are RS000"):
        check(model, IDS, select=["RS999"])


def test_the_report_is_data(tiny_llama: Any) -> None:
    model = load(tiny_llama())
    inject(model, "zero", layer=2, write="attn")
    report = check(model, IDS)
    plain = report.to_dict()
    assert plain["schema"] == "resstream.check/1"
    keys = {
        "code",
        "status",
        "severity",
        "layer",
        "write",
        "site",
        "statement",
        "evidence",
        "remedy",
    }
    assert set(plain["findings"][0]) == keys
    assert set(plain["findings"][0]["evidence"][0]) == {"name", "value", "threshold", "ci"}
    assert CheckReport.from_json(report.to_json()).to_json() == report.to_json()
    assert report.to_dataframe()["layer"].tolist() == [2]
    assert len(report.plot().data) > 0


def test_checking_changes_nothing(tiny_llama: Any) -> None:
    model = load(tiny_llama())
    inject(model, "scale", layer=3, write="mlp", severity=30)
    before = StreamModel(model.module, name="x").weights_hash
    check(model, IDS)
    assert StreamModel(model.module, name="x").weights_hash == before
    assert not any(part._forward_hooks for part in model.module.modules())


def test_models_without_logits_are_refused() -> None:
    from transformers import ViTConfig, ViTModel

    vit = ViTModel(ViTConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                             intermediate_size=16, image_size=16, patch_size=8))  # fmt: skip
    with pytest.raises(UnsupportedModelError, match="needs a model with logits over tokens"):
        check(load(vit))


def test_neighbours_are_of_one_kind_and_near(tiny_llama: Any) -> None:
    writes = load(tiny_llama()).spec.writes
    labels = [writes[row].label for row in neighbours_of(writes, 0)]
    assert labels == ["L1 attn", "L2 attn", "L3 attn"]


def test_a_culprit_that_lifts_all_behind_it_still_stands_out(tiny_llama: Any) -> None:
    """Norms of SmolLM2's MLPs with one output matrix times 16: what reads the stream is larger."""
    from resstream.checks.readings import _against_neighbours

    writes = load(tiny_llama(num_hidden_layers=12)).spec.writes
    norms = [45.4, 15.9, 17.6, 18.2, 21.5, 23.0, 387.9, 88.0, 90.6, 89.8, 89.0, 83.2]
    values = np.full(24, np.nan)
    values[1::2] = np.log(norms)
    expected, z = _against_neighbours(values, writes, 0.15)
    assert z[13] > 6
    assert np.exp(expected[13]) == pytest.approx(21.5)
    assert np.abs(z[15:]).max() < 3


def test_clipping_a_channel_brings_it_to_the_size_of_the_others() -> None:
    value = torch.ones(1, 1, 9)
    value[..., 4] = -50
    clipped = clip_channel(4)(value, value)
    expected = torch.ones(1, 1, 9)
    expected[..., 4] = -1
    torch.testing.assert_close(clipped, expected)
    assert value[..., 4] == -50


class TestDemos:
    """The embedded model, trained: here the loss decides."""

    def report(self, name: str) -> CheckReport:
        model = load(name)
        return check(model, read_corpus(model, None, max_sequences=48))

    def test_demo_is_healthy(self) -> None:
        report = self.report("demo")
        assert report.verdict == "healthy"
        demo = load("demo")
        assert report.base_loss < 0.9 * math.log(demo.spec.d_vocab or 2)
        clean = mean_loss(demo, read_corpus(demo, None, max_sequences=48))
        assert report.base_loss == pytest.approx(clean, rel=1e-6)
        assert np.isfinite([row.estimated_effect for row in report.writes]).all()

    def test_collapsed(self) -> None:
        report = self.report("demo:collapsed")
        assert found(report)[0] == ("RS102", 3, "mlp")
        assert len(found(report)) == 1

    def test_polluted(self) -> None:
        report = self.report("demo:polluted")
        assert found(report)[0][1:] == (4, "mlp")
        assert len(found(report)) == 1
