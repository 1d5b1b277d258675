"""Dropout, padding and BOS do not change a verdict, or are refused."""

from typing import Any

import pytest
import torch

from resstream.checks.checking import check
from resstream.checks.report import CheckReport
from resstream.errors import TextError
from resstream.stream.faults import inject
from resstream.stream.loading import load
from resstream.stream.model import StreamModel
from resstream.stream.texts import read_corpus

IDS = torch.randint(1, 256, (6, 96), generator=torch.Generator().manual_seed(0))


def found(report: CheckReport) -> list[tuple[str, int | None, str | None, str]]:
    return [(f.code, f.layer, f.write, f.status) for f in report.findings]


def dropping(tiny_llama: Any) -> StreamModel:
    """A model with a fault whose module was put back into training mode after it was loaded."""
    model = load(tiny_llama(attention_dropout=0.5))
    inject(model, "scale", layer=3, write="mlp", severity=30)
    model.module.train()
    model.module.get_submodule("model.layers.0").eval()
    return model


def test_dropout_that_was_left_on_changes_nothing(tiny_llama: Any) -> None:
    model = dropping(tiny_llama)
    noisy = [model.forward(IDS).detach() for _ in range(2)]
    assert not torch.equal(*noisy)
    report = check(model, IDS)
    assert found(report) == [("RS201", 3, "mlp", "confirmed")]
    assert report.to_json() == check(model, IDS).to_json()
    model.module.eval()
    assert report.to_json() == check(model, IDS).to_json()


def test_the_mode_of_each_part_is_put_back(tiny_llama: Any) -> None:
    model = dropping(tiny_llama)
    before = {name: part.training for name, part in model.module.named_modules()}
    check(model, IDS, reference=model)
    assert {name: part.training for name, part in model.module.named_modules()} == before
    with pytest.raises(RuntimeError), model.evaluating():
        assert not any(part.training for part in model.module.modules())
        raise RuntimeError
    assert {name: part.training for name, part in model.module.named_modules()} == before


@pytest.mark.parametrize("left", [True, False])
def test_padding_is_refused(tiny_llama: Any, left: bool) -> None:
    model = load(tiny_llama(pad_token_id=0))
    padded = IDS.clone()
    padded[2, slice(0, 5) if left else slice(91, 96)] = 0
    with pytest.raises(
        TextError, match=r"must not be padded, got 5 padding tokens \(id 0\).*row 2"
    ):
        check(model, padded)
    padded[2] = 0
    with pytest.raises(TextError, match="must not be padded, got 96"):
        check(model, padded)


def test_rows_of_different_lengths_need_no_padding(tiny_llama: Any) -> None:
    model = load(tiny_llama(pad_token_id=0))
    inject(model, "scale", layer=3, write="mlp", severity=30)
    rows = [row[: 96 - 7 * number].tolist() for number, row in enumerate(IDS)]
    assert found(check(model, rows)) == [("RS201", 3, "mlp", "confirmed")]


def test_one_token_at_an_end_is_no_padding(tiny_llama: Any) -> None:
    ids = IDS.clone()
    ids[:, 0] = ids[:, -1] = 0  # a text between two end-of-text tokens
    assert check(load(tiny_llama(pad_token_id=0)), ids).verdict == "healthy"
    ids[:, :5] = 0
    assert check(load(tiny_llama()), ids).verdict == "healthy"  # no such token: nothing to refuse


@pytest.mark.parametrize(
    ("fault", "expected"),
    [(None, []), (("scale", 4, 24.0), [("RS201", 4, "mlp", "confirmed")])],
)
def test_bos_changes_no_verdict(fault: tuple[str, int, float] | None, expected: list[Any]) -> None:
    model = load("demo")
    if fault is not None:
        inject(model, fault[0], layer=fault[1], write="mlp", severity=fault[2])
    for bos in (True, False):
        corpus = read_corpus(model, None, bos=bos, max_sequences=16)
        assert found(check(model, corpus, remedies=False)) == expected
