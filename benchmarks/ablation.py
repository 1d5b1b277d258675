"""How much faster, and in how much less memory, is exact ablation than TransformerLens with hooks?

Both take away the same writes of the same model on the same tokens and measure the loss: the
attention and MLP writes of six layers spread evenly.  TransformerLens 4.3 (Bridge) runs a whole
forward with one hook for each write, and one without.  Printed: the ratio of medians by wall and by
processor time, the largest difference of the effects, the layer-tokens computed against the least
that exactness needs, and the peak resident memory that each takes beside the loaded model.

    python -m benchmarks.ablation --model DIR --sequences 8 --tokens 256
    python -m benchmarks.ablation --model deep-small-vocabulary

The model named deep-small-vocabulary is random: LLaMA, 48 layers of width 256, 512 tokens in the
vocabulary.  Each side runs in a process of its own, so that memory is its own too.
Needs `pip install resstream[bench]`.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

DEEP = "deep-small-vocabulary"
LAYERS = 6


def load(name: str) -> tuple[Any, str]:
    """The model as transformers has it, and a directory with its weights and tokenizer."""
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    if name != DEEP:
        return AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32).eval(), name
    from benchmarks.patching import byte_tokenizer

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=48,
        num_attention_heads=4,
        num_key_value_heads=4,
        pad_token_id=0,
    )
    place = tempfile.mkdtemp()
    module = LlamaForCausalLM(config).eval()
    module.save_pretrained(place)
    byte_tokenizer().save_pretrained(place)
    return module, place


def make_tokens(size: int, sequences: int, length: int) -> torch.Tensor:
    """Random ids: what they are does not matter for the time."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(3, size, (sequences, length), generator=generator)


def spread_layers(count: int) -> list[int]:
    """Six layers, each in the middle of a sixth of them."""
    return [int((2 * i + 1) * count / (2 * LAYERS)) for i in range(LAYERS)]


class PeakMemory:
    """Most resident memory of this process while open, less what it had before, in bytes."""

    def __enter__(self) -> "PeakMemory":
        """Begin to look, every five milliseconds."""
        self._open = True
        self._before = self._most = resident()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while self._open:
            self._most = max(self._most, resident())
            time.sleep(0.005)

    def __exit__(self, *_: object) -> None:
        """Stop looking."""
        self._open = False
        self._thread.join()

    @property
    def taken(self) -> int:
        """Bytes."""
        return self._most - self._before


def resident() -> int:
    """Resident memory of this process in bytes."""
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * resource.getpagesize()


def timed(function: Callable[[], Any], repeat: int) -> tuple[Any, dict[str, float]]:
    """The value of `function`, and medians of its times and its peak memory."""
    wall: list[float] = []
    cpu: list[float] = []
    value = None
    with PeakMemory() as memory:
        for _ in range(repeat):
            began = time.perf_counter(), time.process_time()
            value = function()
            wall.append(time.perf_counter() - began[0])
            cpu.append(time.process_time() - began[1])
    return value, {
        "wall_s": statistics.median(wall),
        "wall_spread_s": max(wall) - min(wall),
        "cpu_s": statistics.median(cpu),
        "peak_bytes_beside_model": memory.taken,
    }


def ours(arguments: argparse.Namespace) -> dict[str, Any]:
    """Resstream on the writes of six layers, and the plan of all writes."""
    import resstream as rs
    from resstream.analysis.ablation import AblationSweep
    from resstream.analysis.ablation_targets import choose_targets
    from resstream.stream.texts import read_corpus

    module, _ = load(arguments.model)
    model = rs.load(module)
    tokens = make_tokens(model.spec.d_vocab or 0, arguments.sequences, arguments.tokens)
    layers = spread_layers(model.spec.n_layers)
    sites = [write.site for write in model.spec.writes if write.layer in layers]
    rs.ablate(model, tokens[:1, :16], sites=sites[:1])  # once per model: the hash of the weights
    result, times = timed(lambda: rs.ablate(model, tokens, sites=sites), arguments.repeat)
    sweep = AblationSweep(model, read_corpus(model, tokens), choose_targets(model), kind="zero")
    plan = sweep.plan()
    n_layers, writes = model.spec.n_layers, len(model.spec.writes)
    # Without an attention write only the rest of its block is needed, without an MLP none of it.
    least = tokens.numel() * (n_layers + sum(n_layers - 1 - w.layer for w in model.spec.writes))
    return times | {
        "effects": [item.effect for item in result.effects],
        "layer_tokens": result.layer_tokens,
        "all_writes": {
            "writes": writes,
            "layer_tokens": plan.layer_tokens,
            "half_of_naive": plan.naive_layer_tokens / 2,
            "over_half_of_naive": plan.layer_tokens / (plan.naive_layer_tokens / 2),
            "over_least_whole_blocks": plan.layer_tokens / least,
        },
    }


def theirs(arguments: argparse.Namespace) -> dict[str, Any]:
    """TransformerLens with a hook for each write."""
    from transformer_lens.model_bridge import TransformerBridge

    module, place = load(arguments.model)
    bridge = TransformerBridge.boot_transformers(place, hf_model=module, device="cpu")
    tokens = make_tokens(bridge.cfg.d_vocab, arguments.sequences, arguments.tokens)
    n_layers = bridge.cfg.n_layers
    names = [f"blocks.{i}.hook_{s}_out" for i in spread_layers(n_layers) for s in ("attn", "mlp")]

    def cut(value: torch.Tensor, hook: Any) -> torch.Tensor:
        del hook
        return torch.zeros_like(value)

    @torch.no_grad()
    def run() -> list[float]:
        base = float(bridge(tokens, return_type="loss"))
        return [
            float(bridge.run_with_hooks(tokens, return_type="loss", fwd_hooks=[(name, cut)])) - base
            for name in names
        ]

    bridge(tokens[:1, :16], return_type="loss")
    effects, times = timed(run, arguments.repeat)
    passes = (1 + len(names)) * n_layers
    return times | {"effects": effects, "layer_tokens": tokens.numel() * passes}


def main() -> None:
    """Run both sides and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", required=True)
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--side", choices=("ours", "theirs"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side is not None:
        run = ours if arguments.side == "ours" else theirs
        print(json.dumps(run(arguments)))
        return
    found = {side: _in_own_process(side) for side in ("theirs", "ours")}
    mine, other = found["ours"], found["theirs"]
    effects = (np.array(side.pop("effects")) for side in (mine, other))
    report = {
        "model": arguments.model,
        "tokens": [arguments.sequences, arguments.tokens],
        "threads": torch.get_num_threads(),
        "transformer_lens": other,
        "resstream": mine,
        "ratio_wall": other["wall_s"] / mine["wall_s"],
        "ratio_cpu": other["cpu_s"] / mine["cpu_s"],
        "memory_of_theirs": mine["peak_bytes_beside_model"] / other["peak_bytes_beside_model"],
        "largest_difference": float(np.abs(np.subtract(*effects)).max()),
    }
    print(json.dumps(report, indent=1))


def _in_own_process(side: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.ablation", *sys.argv[1:], "--side", side]
    ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(ended.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
