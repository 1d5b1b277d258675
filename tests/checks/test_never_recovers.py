"""RS205: a block that the logit lens never recovers from; healthy depths do not set it off."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from resstream.analysis.losses import token_losses
from resstream.checks.checking import check
from resstream.checks.experiments import Lab
from resstream.checks.report import Finding
from resstream.checks.rules import rs205_never_recovers
from resstream.recording.recorder import record
from resstream.stream.faults import inject
from resstream.stream.loading import load
from resstream.stream.model import StreamModel
from resstream.stream.texts import read_corpus

IDS = torch.randint(0, 256, (6, 96), generator=torch.Generator().manual_seed(0))
HEALTHY = np.array([6.1, 4.4, 3.6, 3.0, 2.4, 2.3, 1.7, 1.4, 1.3])
CHANCE = math.log(512)


def lab_of(model: StreamModel) -> Lab:
    corpus = read_corpus(model, None, max_sequences=16)
    lab = Lab(model, corpus, 0)
    record(model, corpus, at_end=lab.hear)
    lab.settle_base()
    return lab


def look(model: StreamModel, known: list[Finding] | None = None) -> list[Finding]:
    return rs205_never_recovers.look(lab_of(model), known or [])


def with_rise(layer: int, rise: float, *, until: int = 99) -> np.ndarray:
    """Healthy losses that are higher from behind `layer` up to depth `until`."""
    losses = HEALTHY.copy()
    losses[layer + 1 : until] += rise
    return losses


def test_the_block_with_the_lasting_rise_is_named() -> None:
    found = rs205_never_recovers.steepest(with_rise(5, 3.0), chance=CHANCE)
    assert found is not None
    assert (found.layer, found.before) == (5, 2.3)
    assert found.best_after == pytest.approx(4.3)
    assert found.rise == pytest.approx(2.4)


@pytest.mark.parametrize(
    "losses",
    [
        HEALTHY,
        with_rise(3, 2.0, until=7),  # comes back
        with_rise(7, 0.1),  # the last block helps less than it could
        np.full(9, CHANCE) + np.array([0, 0, 0, 0, 1.0, 1, 1, 1, 1]),  # at chance before
        np.array([9.0, 12.0, 15.0, 14.0, 9.0, 6.0, 4.0, 3.0, 2.9]),  # a lens that is bad early
        np.full(9, np.nan),
        np.array([2.0, 9.0]),
    ],
)
def test_what_comes_back_or_says_nothing_does_not_count(losses: np.ndarray) -> None:
    assert rs205_never_recovers.steepest(losses, chance=CHANCE) is None


def test_the_last_reading_is_the_loss_of_the_model() -> None:
    model = load("demo")
    lab = lab_of(model)
    losses = rs205_never_recovers.lens_losses(lab)
    assert losses.shape == (9,)
    short = [row[:25] for row in lab.corpus.sequences[:4]]
    own = [token_losses(model.forward(row[None]), row[None])[0, 1:].detach() for row in short]
    assert losses[-1] == pytest.approx(float(torch.cat(own).mean()), rel=1e-5)


def test_the_write_is_named_and_confirmed() -> None:
    model = load("demo")
    inject(model, "sign_flip", layer=6, write="mlp")
    (finding,) = look(model)
    assert (finding.code, finding.status) == ("RS205", "confirmed")
    assert (finding.layer, finding.write, finding.site) == (6, "mlp", "blocks.6.hook_mlp_out")
    early, own = finding.evidence[-2:]
    assert early.ci is not None and early.ci[1] < 0
    assert own.ci is not None and own.ci[1] < 0
    assert look(model, [finding]) == []  # named before: explained


def test_a_fault_that_costs_all_the_model_knew_is_still_read() -> None:
    model = load("demo")
    inject(model, "scale", layer=7, write="attn", severity=-12)
    lab = lab_of(model)
    assert not lab.informative
    (finding,) = rs205_never_recovers.look(lab, [])
    assert (finding.layer, finding.write, finding.status) == (7, "attn", "confirmed")


def test_without_a_culprit_in_the_block_it_stays_suspect(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lens may turn later than the fault: then the block is not at fault, and not accused."""
    model = load("demo")
    inject(model, "sign_flip", layer=6, write="mlp")
    late = rs205_never_recovers.Descent(layer=7, before=1.0, best_after=2.0, rise=1.0, mads=4.0)
    monkeypatch.setattr(rs205_never_recovers, "steepest", lambda *_, **__: late)
    assert all(finding.status == "suspect" for finding in look(model))


def test_healthy_models_do_not_set_it_off(tiny_llama: Any) -> None:
    assert look(load("demo")) == []
    for seed in range(3):
        assert check(load(tiny_llama(seed)), IDS, select="RS205").findings == ()
    closed = tiny_llama()
    with torch.no_grad():
        for name, value in closed.named_parameters():
            if "down_proj" in name or "o_proj" in name:
                value.zero_()
    assert check(load(closed), IDS, select="RS205").findings == ()


@pytest.mark.data
@pytest.mark.parametrize("text", ["tinystories_sample.txt", "the_verdict.txt"])
def test_a_trained_model_does_not_set_it_off(data_path: Callable[[str], Path], text: str) -> None:
    model = load(data_path("stories260K"))
    corpus = read_corpus(model, data_path(f"texts/{text}"), max_sequences=12)
    assert check(model, corpus, select="RS205").findings == ()


def test_a_culprit_that_another_rule_named_is_named_once() -> None:
    model = load("demo")
    inject(model, "sign_flip", layer=6, write="mlp")
    corpus = read_corpus(model, None, max_sequences=16)
    assert [f.code for f in check(model, corpus, remedies=False).findings] == ["RS203"]
    assert [f.code for f in check(model, corpus, select="RS205").findings] == ["RS205"]
