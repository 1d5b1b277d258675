"""The table of fixes that a check tried: short cells, three rows, and how they are judged."""

from types import SimpleNamespace
from typing import Any

from rich.console import Console, Group

from resstream.checks.report import RemedyTrial
from resstream_cli.fixes import tried_fixes

MATRIX = "model.blocks.4.mlp.down_proj.weight"


def trial(factor: float, *, best: bool = False, held_out: bool = True) -> RemedyTrial:
    return RemedyTrial(
        code="RS201",
        layer=4,
        write="mlp",
        remedy=f"multiply the output matrix ({MATRIX}) by {factor}",
        loss_before=3.048,
        loss_after=1.161,
        change=-1.887,
        ci=(-2.07, -1.71),
        n_tokens=833,
        held_out=held_out,
        best=best,
        short=f"x {factor}",
        parameters=(MATRIX,),
    )


def shown(*trials: RemedyTrial) -> str:
    report: Any = SimpleNamespace(remedies=trials, base_loss=3.208)
    console = Console(width=80, highlight=False)
    with console.capture() as captured:
        console.print(Group(*tried_fixes(report)))
    return captured.get()


def test_the_matrix_is_named_once_and_three_fixes_are_shown() -> None:
    said = shown(trial(0.02, best=True), *(trial(factor) for factor in (0.04, 0.01, 0.16, 0.32)))
    assert said.count(MATRIX) == 1
    assert [factor in said for factor in ("x 0.02", "x 0.04", "x 0.01")] == [True] * 3
    assert "0.16" not in said
    assert "2 more were tried" in said
    assert "833 held-out tokens" in said
    assert "3.208" in said


def test_a_short_text_chooses_and_judges() -> None:
    said = shown(trial(0.02, best=True, held_out=False))
    assert "too short" in said
    assert "more were tried" not in said


def test_nothing_tried_shows_nothing() -> None:
    assert not shown().strip()
