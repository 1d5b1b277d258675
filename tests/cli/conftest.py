"""A command line to call, and a checkpoint to call it on."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from resstream_cli.app import app

Call = Callable[..., Any]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Call:
    """Runs ``resstream`` in this process; the result has stdout, stderr and exit_code."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")

    def run(*arguments: object) -> Any:
        return CliRunner().invoke(app, [str(item) for item in arguments])

    return run


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random three-layer LLaMA on disk, without a tokenizer; read-only."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    place = tmp_path_factory.mktemp("checkpoint") / "llama"
    LlamaForCausalLM(config).save_pretrained(place)
    return place


@pytest.fixture
def copy(checkpoint: Path, tmp_path: Path) -> Path:
    """The same checkpoint to damage."""
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


@pytest.fixture(scope="session")
def demo_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model, which has a tokenizer, as a directory; read-only."""
    import resstream as rs
    from resstream.stream.saving import save_model

    return save_model(rs.load("demo"), tmp_path_factory.mktemp("demo") / "demo")
