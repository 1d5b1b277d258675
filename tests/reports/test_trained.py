"""The pages of a training run and of a monitor say what happened."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from resstream.reports.page import render_page
from resstream.reports.pages import page_of
from resstream.stream.provenance import Provenance
from resstream.train.recording import StepCulprit, TrainingRecording
from resstream.train.result import TrainingResult

PROVENANCE = Provenance(
    model="run", model_hash="", text="9 windows", text_hash="", dtype="float32", device="cpu",
    seed=0, replay_error=0.0, versions={},
)  # fmt: skip


@pytest.fixture
def recording() -> TrainingRecording:
    draw = np.random.default_rng(0)
    shapes: dict[str, Any] = {
        "loss": 5, "learning_rate": 5, "gradient_norm": (5, 2), "other_gradient_norm": 5,
        "write_norm": (5, 4), "relative_norm": (5, 4), "cosine": (5, 4), "scale": (5, 0),
        "stream_norm": (5, 5),
    }  # fmt: skip
    names = ("attn", "mlp", "attn", "mlp")
    layers = np.array([0, 0, 1, 1])
    points = (*(f"blocks.{i}.hook_resid_{p}" for i in (0, 1) for p in ("pre", "mid")),)
    return TrainingRecording(
        provenance=PROVENANCE,
        n_steps=5,
        steps=np.arange(1, 6),
        layers=layers,
        names=names,
        sites=tuple(f"blocks.{i}.hook_{n}_out" for i, n in zip(layers, names, strict=True)),
        scale_layers=np.zeros(0, dtype=np.int64),
        scale_names=(),
        stream_sites=(*points, "blocks.1.hook_resid_post"),
        bad_steps=0,
        first_bad=None,
        **{name: draw.uniform(0.1, 1.0, shape) for name, shape in shapes.items()},
    )


@pytest.fixture
def trained(recording: TrainingRecording) -> TrainingResult:
    return TrainingResult(
        provenance=PROVENANCE,
        directory="run",
        rule="plain",
        n_layers=2,
        d_model=8,
        n_parameters=99,
        n_steps=5,
        n_tokens=80,
        resumed_from=None,
        logged_steps=np.array([2, 4]),
        logged_loss=np.array([3.0, 2.0]),
        validation_steps=np.array([5]),
        validation_loss=np.array([2.5]),
        final_loss=2.0,
        final_validation_loss=2.5,
        recording=recording,
    )


def titles(page: Any) -> list[str]:
    return [section.title for section in page.sections]


def test_a_run_has_its_losses_and_heat_maps(trained: TrainingResult) -> None:
    page = page_of(trained)
    assert page.banner.headline == "validation loss 2.5 nats per token"
    assert "All values were finite in 5 steps" in page.banner.sentence
    assert len(page.sections) == 6
    assert not any("gates" in title for title in titles(page)), "nothing is scaled here"
    for section in page.sections:
        assert section.figure is not None
        if section.table is not None:
            assert {len(row) for row in section.table.rows} == {len(section.table.columns)}
    assert "run" in render_page(page)


def test_a_run_without_a_monitor_or_a_validation_text(trained: TrainingResult) -> None:
    bare = replace(trained, recording=None, final_validation_loss=None)
    page = page_of(bare)
    assert page.banner.headline == "training loss 2 nats per token"
    assert titles(page) == ["Does it learn?"]


def test_scales_have_a_heat_map(recording: TrainingRecording) -> None:
    scaled = replace(
        recording, scale=np.ones((5, 2)), scale_layers=np.array([0, 1]), scale_names=("mlp", "mlp")
    )
    assert "How do gates and scales open?" in titles(page_of(scaled))


def test_a_culprit_is_what_the_page_says_first(
    recording: TrainingRecording, trained: TrainingResult
) -> None:
    bad = replace(
        recording, first_bad=StepCulprit(step=4, place="blocks.1.hook_mlp_out"), bad_steps=2
    )
    for page in (page_of(bad), page_of(replace(trained, recording=bad))):
        assert page.banner.tone == "bad"
        assert page.banner.sentence == "First at step 4: blocks.1.hook_mlp_out; 2 steps in all."


def test_a_run_that_did_not_take_a_step(recording: TrainingRecording) -> None:
    empty = {
        name: getattr(recording, name)[:0]
        for name in (
            "steps", "loss", "learning_rate", "gradient_norm", "other_gradient_norm", "write_norm",
            "relative_norm", "cosine", "scale", "stream_norm",
        )
    }  # fmt: skip
    page = page_of(replace(recording, n_steps=0, **empty))
    assert page.sections == ()
