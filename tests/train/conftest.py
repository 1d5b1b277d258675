"""Small runs of Trainer, and a configuration to write down."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

N_CTX, D_VOCAB = 16, 50

SMALL: dict[str, Any] = {
    "model": {"n_layers": 2, "d_model": 16, "n_heads": 2, "n_ctx": N_CTX},
    "training": {"steps": 6, "batch": 2, "learning_rate": 3e-3, "log_every": 2},
}


@pytest.fixture
def native() -> Callable[..., Any]:
    """Makes native models for Trainer: ``native(rule=ReZero(), n_layers=3)``."""

    def make(**changes: Any) -> Any:
        from resstream.nn.config import TransformerConfig
        from resstream.nn.pretrained import ResstreamConfig, ResstreamForCausalLM

        sizes = {"n_layers": 3, "d_model": 16, "n_heads": 2, "d_vocab": D_VOCAB, "n_ctx": N_CTX}
        torch.manual_seed(0)
        return ResstreamForCausalLM(ResstreamConfig.of(TransformerConfig(**(sizes | changes))))

    return make


@pytest.fixture
def trainer(tmp_path: Path) -> Callable[..., Any]:
    """Makes a Trainer that logs every step: ``trainer(model, callbacks=[...], max_steps=2)``."""

    def make(model: nn.Module, *, callbacks: Any = (), **options: Any) -> Any:
        from transformers import PrinterCallback, Trainer, TrainingArguments

        generator = torch.Generator().manual_seed(1)
        rows = torch.randint(3, D_VOCAB, (32, N_CTX), generator=generator)
        asked: dict[str, Any] = {
            "max_steps": 3,
            "per_device_train_batch_size": 2,
            "logging_steps": 1,
            "save_strategy": "no",
            "use_cpu": True,
            "disable_tqdm": True,
            "report_to": [],
            "dataloader_pin_memory": False,
        }
        examples = [{"input_ids": row, "labels": row} for row in rows]
        made = Trainer(
            model=model,
            args=TrainingArguments(str(tmp_path / "run"), **(asked | options)),
            train_dataset=examples,
            eval_dataset=examples,
            callbacks=list(callbacks),
        )
        made.remove_callback(PrinterCallback)
        return made

    return make


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    """Writes a configuration: ``written({"training.steps": 9, "model.rule": "rezero"})``."""

    def write(changes: dict[str, Any] | None = None, name: str = "run.yaml") -> Path:
        plain: dict[str, Any] = yaml.safe_load(yaml.safe_dump(SMALL))
        for key, value in (changes or {}).items():
            *sections, last = key.split(".")
            place = plain
            for section in sections:
                place = place.setdefault(section, {})
            place[last] = value
        (tmp_path / name).write_text(yaml.safe_dump(plain))
        return tmp_path / name

    return write
