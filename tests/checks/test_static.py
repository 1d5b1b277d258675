"""`check --static`: each byte once, in the memory of a part, and the same findings."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from resstream.checks.static import check_static
from resstream.checks.weights import read_files, read_model_weights
from resstream.errors import CheckpointError
from resstream.stream.faults import inject
from resstream.stream.loading import load
from resstream.stream.saving import save_model
from resstream.stream.tensor_files import TensorFile, checkpoint_files

MEASURE = """
import sys
from resstream.checks.static import check_static
from resstream.sweep.memory import peak_memory
report = check_static(sys.argv[1])
print(report.verdict, peak_memory() // 2**20)
"""
IDLE = """
import resstream.checks.static
from resstream.sweep.memory import peak_memory
print(peak_memory() // 2**20)
"""


def test_files_and_memory_say_the_same(tiny_llama: Any, tmp_path: Path) -> None:
    model = load(tiny_llama())
    inject(model, "rank_one", layer=3, write="mlp")
    place = save_model(model, tmp_path / "model")
    report = check_static(place)
    assert report.findings[0].code == "RS107"
    assert {(f.layer, f.write) for f in report.findings} == {(3, "mlp")}
    assert report.verdict == "findings"
    memory = {r.name: r.digest for r in read_model_weights(model).readings}
    files = {r.name: r.digest for r in read_files(checkpoint_files(place)).readings}
    assert files == {name: memory[name] for name in files}
    assert '"nan"' in report.to_json()


def test_each_byte_is_read_once(tiny_llama: Any, tmp_path: Path) -> None:
    place = save_model(load(tiny_llama()), tmp_path / "model")
    (file,) = checkpoint_files(place)
    read_files([file])
    assert file.bytes_read == file.path.stat().st_size


def test_a_demo_has_no_file_and_is_read_from_memory() -> None:
    assert check_static("demo").verdict == "healthy"


def test_damaged_files_are_refused(tiny_llama: Any, tmp_path: Path) -> None:
    place = save_model(load(tiny_llama()), tmp_path / "model")
    file = place / "model.safetensors"
    whole = file.read_bytes()
    for wrong in (whole[:-8], whole + b"x", b"", whole[:4], b"\xff" * 64):
        file.write_bytes(wrong)
        with pytest.raises(CheckpointError, match="no whole safetensors file"):
            TensorFile(file)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"has no \.safetensors file"):
        check_static(tmp_path / "empty")
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        check_static(tmp_path / "nowhere")


def write_synthetic(place: Path, *, layers: int, side: int) -> int:
    """A checkpoint of random matrices, a shard a layer; returns its bytes."""
    from safetensors.torch import save_file

    place.mkdir()
    generator = torch.Generator().manual_seed(0)
    for layer in range(layers):
        shapes = {"self_attn.o_proj": (side, side), "mlp.down_proj": (side, 3 * side)}
        save_file(
            {
                f"model.layers.{layer}.{role}.weight": torch.randn(shape, generator=generator)
                for role, shape in shapes.items()
            },
            place / f"model-{layer:05d}.safetensors",
        )
    return sum(file.stat().st_size for file in place.glob("*.safetensors"))


def resident_megabytes(code: str, *arguments: str) -> tuple[str, int]:
    ended = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    *said, size = ended.stdout.split()
    return " ".join(said), int(size)


def test_memory_is_that_of_a_part(tmp_path: Path) -> None:
    size = write_synthetic(tmp_path / "big", layers=8, side=1536) >> 20
    assert size > 280
    _, idle = resident_megabytes(IDLE)
    verdict, used = resident_megabytes(MEASURE, str(tmp_path / "big"))
    assert verdict == "healthy"
    assert used - idle < 256  # 36 MB in a matrix, with its copies


@pytest.mark.slow
def test_four_gigabytes_in_less_than_one(tmp_path: Path) -> None:
    size = write_synthetic(tmp_path / "big", layers=64, side=2048) >> 20
    assert size >= 4096
    verdict, used = resident_megabytes(MEASURE, str(tmp_path / "big"))
    assert verdict == "healthy"
    assert used < 1024
