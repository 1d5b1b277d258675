"""Where tests find data and models, and the line that says how many were skipped."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

    from resstream import StreamModel

ROOT = Path(__file__).parents[1]

os.environ.setdefault("HF_HUB_OFFLINE", "1")

# How long an example takes says more about the machine than about the code.
settings.register_profile("resstream", deadline=None)
settings.load_profile("resstream")


def _found(path: Path, how: str) -> Path:
    if not path.exists():
        pytest.skip(f"{path.name} is not here: {how}")
    return path


@pytest.fixture(scope="session")
def data_path() -> Callable[[str], Path]:
    """Path of a file of the test data; the test is skipped where it is absent."""
    root = Path(os.environ.get("RESSTREAM_DATA", ROOT.parent / "shared" / "data"))

    def find(name: str) -> Path:
        return _found(root / name, "set RESSTREAM_DATA to the folder with the test data")

    return find


@pytest.fixture(scope="session")
def smollm2_path() -> Callable[[str], Path]:
    """Path of ``smollm2`` (a directory) or ``smollm2.gguf``; skipped where it is absent."""
    root = Path(os.environ.get("RESSTREAM_CACHE", ROOT / ".cache"))

    def find(name: str) -> Path:
        return _found(root / name, "run `python .ci/fetch_smollm2.py .cache`")

    return find


@pytest.fixture
def tiny_llama() -> "Callable[..., LlamaForCausalLM]":
    """Makes random small LLaMA models: ``tiny_llama(seed, num_hidden_layers=6)``."""

    def make(seed: int = 0, **changes: Any) -> "LlamaForCausalLM":
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        sizes = {
            "vocab_size": 256,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 6,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 128,
        }
        torch.manual_seed(seed)
        return LlamaForCausalLM(LlamaConfig(**(sizes | changes))).eval()

    return make


@pytest.fixture(scope="session")
def demo() -> "StreamModel":
    """The embedded model; read-only, since all tests of a process share it."""
    import resstream as rs

    return rs.load("demo")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes minutes runs only if it is asked for."""
    if "slow" in (config.option.markexpr or ""):
        return
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="takes minutes; run by `pytest -m slow`"))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """A skip never counts as shown, so their number is said even when nobody asks."""
    skipped = len(terminalreporter.stats.get("skipped", []))
    terminalreporter.write_line(f"skips: {skipped}")
