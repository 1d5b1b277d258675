"""The main job on a real checkpoint: what the project promises of SmolLM2-135M, as it promises it.

Run by ``pytest -m slow tests/test_smollm2.py``; it needs SmolLM2 (RESSTREAM_CACHE) and WikiText
(RESSTREAM_DATA), and takes about half an hour on two cores.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import resstream as rs
from resstream.analysis.losses import token_losses
from resstream.analysis.pairs import encode_pairs, read_pairs
from resstream.stream.sites import block_site
from resstream.stream.texts import Corpus, read_corpus
from resstream.sweep.reference import base_values, run_by_hooks
from resstream.sweep.variants import Edit, Variant

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


IOI = {
    "clean": "When Mary and John went to the store, John gave a drink to",
    "corrupted": "When Mary and John went to the store, Mary gave a drink to",
    "answer": " Mary",
    "wrong": " John",
}


@pytest.mark.parametrize(
    "site", ["resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out", "head_out"]
)
def test_patching_equals_plain_hooks(smollm2_path: Find, site: Any) -> None:
    """Every cell of the IOI pair; of the heads those of every sixth layer."""
    model = rs.load(smollm2_path("smollm2"))
    layers = list(range(30)) if site != "head_out" else list(range(0, 30, 6))
    result = rs.patch(model, IOI, site=site, layers=layers, skip_unchanged=False)
    assert result.how == "suffixes behind the base run"
    (pair,) = encode_pairs(model, read_pairs(IOI))
    length, heads = pair.length, 9 if site == "head_out" else 1
    size = 64 if site == "head_out" else 576
    assert result.computed == len(layers) * length * heads
    kept: dict[str, torch.Tensor] = {}

    def put(value: torch.Tensor, base: torch.Tensor, name: str) -> torch.Tensor:
        del base
        value = value.clone()
        for row in range(length * heads):
            position, own = row // heads, slice(size * (row % heads), size * (row % heads + 1))
            value[row, position, own] = kept[name][0, position, own]
        return value

    worst = 0.0
    for layer in layers:
        name = block_site(layer, site)
        kept = base_values(model, pair.clean[None], [name])
        change = Edit(name, lambda value, base, name=name: put(value, base, name))
        rows = pair.corrupted.expand(length * heads, -1)
        last = run_by_hooks(model, rows, Variant(site, (change,)))[:, -1]
        wanted = (last[:, pair.answer] - last[:, pair.wrong]).numpy() - result.corrupted
        worst = max(worst, abs(result.effects[layer].ravel() - wanted).max())
    assert worst <= 5e-5


@pytest.mark.parametrize("site", ["resid_pre", "attn_out", "mlp_out"])
def test_patching_equals_transformer_lens(smollm2_path: Find, site: Any) -> None:
    """The function that its users call, on three layers of the IOI pair."""
    from transformer_lens import patching
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import AutoModelForCausalLM

    place = str(smollm2_path("smollm2"))
    module = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32)
    bridge: Any = TransformerBridge.boot_transformers(place, hf_model=module, device="cpu")
    model = rs.load(smollm2_path("smollm2"))
    layers = [1, 14, 28]
    result = rs.patch(model, IOI, site=site, layers=layers, skip_unchanged=False)
    (pair,) = encode_pairs(model, read_pairs(IOI))
    with torch.no_grad():
        _, cache = bridge.run_with_cache(pair.clean[None])
    cells = pd.DataFrame([{"layer": i, "pos": j} for i in layers for j in range(pair.length)])
    with torch.no_grad():
        found = getattr(patching, f"get_act_patch_{site}")(
            bridge,
            pair.corrupted[None],
            cache,
            lambda logits: logits[0, -1, pair.answer] - logits[0, -1, pair.wrong],
            index_axis_names=None,
            index_df=cells,
        )
    wanted = found.reshape(len(layers), pair.length).cpu().numpy() - result.corrupted
    assert abs(result.effects[layers] - wanted).max() <= 5e-5


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
import sys
from pathlib import Path
import resstream as rs
from resstream.sweep.memory import peak_memory
model = rs.load(sys.argv[1])
rs.record(model, Path(sys.argv[2]), context=250, max_sequences=int(sys.argv[3]))
print(peak_memory())
"""


def test_recording_takes_no_more_memory_for_more_text(smollm2_path: Find, data_path: Find) -> None:
    text = data_path("texts") / "wikitext2_raw_test.txt"

    def peak(sequences: int) -> int:
        arguments = [str(smollm2_path("smollm2")), str(text), str(sequences)]
        command = [sys.executable, "-c", _RECORD, *arguments]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return int(done.stdout.split()[-1])

    assert peak(80) <= 1.05 * peak(8)  # 20,000 tokens against 2,000
