"""The main job on a real checkpoint: what the project promises of SmolLM2-135M, as it promises it.

Run by ``pytest -m slow tests/test_smollm2.py``; it needs SmolLM2 (RESSTREAM_CACHE) and WikiText
(RESSTREAM_DATA), and takes about half an hour on two cores.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import resstream as rs
from resstream.analysis.losses import token_losses
from resstream.stream.texts import Corpus, read_corpus

pytestmark = [pytest.mark.slow, pytest.mark.data]

Find = Callable[[str], Path]


def wikitext(model: rs.StreamModel, data_path: Find, sequences: int) -> Corpus:
    text = data_path("texts") / "wikitext2_raw_test.txt"
    return read_corpus(model, text, context=256, max_sequences=sequences)


@pytest.fixture(scope="module")
def gguf(smollm2_path: Find) -> rs.StreamModel:
    return rs.load(smollm2_path("smollm2.gguf"))


def test_all_blocks_are_proved(gguf: rs.StreamModel) -> None:
    assert gguf.spec.replay_error == 0
    assert len(gguf.spec.blocks) == 30
    assert not any(block.opaque for block in gguf.spec.blocks)
    assert all([w.name for w in block.writes] == ["attn", "mlp"] for block in gguf.spec.blocks)


def test_logits_are_those_of_transformers(gguf: rs.StreamModel, smollm2_path: Find) -> None:
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(smollm2_path("smollm2"), dtype=torch.float32)
    tokens = torch.randint(3, 49152, (2, 128), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        difference = (reference.eval()(tokens).logits - gguf.forward(tokens)).abs().max()
    assert difference <= 1e-4


def test_ablation_equals_plain_hooks(gguf: rs.StreamModel, data_path: Find) -> None:
    corpus = wikitext(gguf, data_path, 8)
    result = rs.ablate(gguf, corpus)
    assert len(result.effects) == 60
    tokens = torch.stack(corpus.sequences)
    with torch.no_grad():
        base = token_losses(gguf.forward(tokens), tokens).mean().item()
    worst = 0.0
    for write, effect in zip(gguf.spec.writes, result.effects, strict=True):
        with torch.no_grad():
            logits = gguf.run(tokens, {write.site: torch.zeros_like})  # a forward with one hook
        expected = token_losses(logits, tokens).mean().item() - base
        worst = max(worst, abs(effect.effect - expected))
    assert worst <= 1e-4


def test_it_is_healthy(smollm2_path: Find, data_path: Find) -> None:
    model = rs.load(smollm2_path("smollm2"))
    report = rs.check(model, wikitext(model, data_path, 16))
    assert report.verdict == "healthy"


@pytest.mark.parametrize(
    ("fault", "layer", "write", "severity"),
    [
        ("zero", 14, "attn", None),
        ("scale", 6, "mlp", 16.0),
        ("sign_flip", 22, "mlp", None),
        ("channel_spike", 17, "mlp", 50.0),
    ],
)
def test_a_fault_is_found(
    smollm2_path: Find, data_path: Find, fault: str, layer: int, write: str, severity: Any
) -> None:
    model = rs.load(smollm2_path("smollm2"))
    rs.inject(model, fault, layer=layer, write=write, severity=severity)
    model = rs.load(model.module, tokenizer=model.tokenizer)
    first = rs.check(model, wikitext(model, data_path, 16)).findings[0]
    assert (first.status, first.layer, first.write) == ("confirmed", layer, write)


_RECORD = """
import resource, sys
from pathlib import Path
import resstream as rs
model = rs.load(sys.argv[1])
rs.record(model, Path(sys.argv[2]), context=250, max_sequences=int(sys.argv[3]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_recording_takes_no_more_memory_for_more_text(smollm2_path: Find, data_path: Find) -> None:
    text = data_path("texts") / "wikitext2_raw_test.txt"

    def peak(sequences: int) -> int:
        arguments = [str(smollm2_path("smollm2")), str(text), str(sequences)]
        command = [sys.executable, "-c", _RECORD, *arguments]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return int(done.stdout.split()[-1])

    assert peak(80) <= 1.05 * peak(8)  # 20,000 tokens against 2,000
