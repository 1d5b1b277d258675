"""How much faster is an exact patching sweep than a peer's, on the same model and tokens?

One process, one thread count, one dtype.  The peer (TransformerLens 4.3's `get_act_patch_*`,
nnsight, or plain hooks on transformers) is timed on a random sample of cells and scaled
(`--sample 0` runs them all); ours is run whole, several times.
Printed:
ratio of medians by wall and by processor time, the numerical agreement on the sampled cells, the
layer-tokens against the least that exactness needs, and the share of a plain product's FLOP/s.

    python -m benchmarks.patching --model DIR --tokens 16 --site resid_pre
    python -m benchmarks.patching --model gpt2-small-shape --tokens 32
    python -m benchmarks.patching --model gpt2-small-shape --peer nnsight

Needs `pip install resstream[bench]`; the model named gpt2-small-shape has random weights.
"""

import argparse
import json
import tempfile
import time
from typing import Any

import numpy as np
import torch

import resstream as rs
from benchmarks.patching_peers import PEERS, TRANSFORMER_LENS, Clock, by_hand
from resstream.sweep.prefix import prove_prefix


def load(name: str, peer: str) -> tuple[Any, Any]:
    """The model for us, and what the peer works on, with the same weights."""
    from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

    if name != "gpt2-small-shape":
        modules = [
            AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32).eval() for _ in range(2)
        ]
        return rs.load(modules[0]), _for_peer(peer, name, modules[1])
    torch.manual_seed(0)
    module = GPT2LMHeadModel(GPT2Config()).eval()
    with tempfile.TemporaryDirectory() as place:
        module.save_pretrained(place)
        byte_tokenizer().save_pretrained(place)
        other = GPT2LMHeadModel.from_pretrained(place).eval()
        return rs.load(module), _for_peer(peer, place, other)


def _for_peer(peer: str, place: str, module: Any) -> Any:
    if peer != "transformer-lens":
        return module
    from transformer_lens.model_bridge import TransformerBridge

    return TransformerBridge.boot_transformers(place, hf_model=module)


def byte_tokenizer() -> Any:
    """A tokenizer for models that have none: TransformerLens wants one."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({f"w{index}": index for index in range(64)}, unk_token="w0"))
    return PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="w0", bos_token="w1", eos_token="w1", pad_token="w1"
    )


def make_pair(model: Any, length: int, seed: int) -> dict[str, Any]:
    """Random tokens that differ in one, past two thirds of the prompt."""
    generator = torch.Generator().manual_seed(seed)
    size = model.spec.d_vocab
    clean = torch.randint(3, size, (length,), generator=generator).tolist()
    corrupted = list(clean)
    place = {16: 11, 32: 25}.get(length, (2 * length) // 3 + 1)
    corrupted[place] = (corrupted[place] + 17) % size
    return {"clean": clean, "corrupted": corrupted, "answer": 5, "wrong": 9}


def plain_flops(model: Any, rows: int) -> float:
    """FLOP/s of torch.mm on the first block's own matrices at `rows` rows, weighted by FLOPs."""
    work = seconds = 0.0
    for weight in model._blocks[0].parameters():
        if weight.ndim != 2:
            continue
        left = torch.randn(rows, weight.shape[0])
        right = weight.detach()
        torch.mm(left, right)
        began = time.process_time()
        for _ in range(3):
            torch.mm(left, right)
        seconds += (time.process_time() - began) / 3
        work += 2.0 * rows * weight.numel()
    return work / seconds


def main() -> None:
    """Time and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--site", choices=TRANSFORMER_LENS, default="resid_pre")
    parser.add_argument("--peer", choices=PEERS, default="transformer-lens")
    parser.add_argument("--sample", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--by-hand", action="store_true")
    arguments = parser.parse_args()
    model, other = load(arguments.model, arguments.peer)
    pair = make_pair(model, arguments.tokens, seed=1)
    # Once per model, not per sweep: the proof, and the hash of the weights for the provenance.
    prove_prefix(model)
    rs.patch(model, pair, site=arguments.site, layers=[0])
    n_layers, length = model.spec.n_layers, arguments.tokens
    places = [(layer, position) for layer in range(n_layers) for position in range(length)]
    order = torch.randperm(len(places), generator=torch.Generator().manual_seed(0)).tolist()
    count = arguments.sample or len(places)
    sample = [places[index] for index in order[:count]]
    their_clock, values = PEERS[arguments.peer](other, pair, arguments.site, sample)
    report: dict[str, Any] = {
        "model": arguments.model,
        "tokens": length,
        "site": arguments.site,
        "threads": torch.get_num_threads(),
        "cells": len(places),
        "sampled": len(sample),
        "peer": arguments.peer,
        "theirs": their_clock.summary(len(places)),
    }
    for name, skip in (("every_cell", False), ("without_no_ops", True)):
        clock = Clock()
        result = None
        for _ in range(arguments.repeat):
            result = clock(
                lambda skip=skip: rs.patch(model, pair, site=arguments.site, skip_unchanged=skip)
            )
        assert result is not None, "run at least once"
        ours = [result.corrupted + float(result.effects[place]) for place in sample]
        mine = clock.summary()
        report[name] = {
            **mine,
            "computed": result.computed,
            "layer_tokens": result.layer_tokens,
            "ratio_wall": report["theirs"]["wall_s"] / mine["wall_s"],
            "ratio_cpu": report["theirs"]["cpu_s"] / mine["cpu_s"],
            "largest_difference": float(np.abs(np.subtract(ours, values)).max()),
        }
        if not skip:
            block = sum(p.numel() for p in model._blocks[0].parameters() if p.ndim == 2)
            achieved = 2.0 * block * result.layer_tokens / mine["cpu_s"]
            report["share_of_plain_product"] = achieved / plain_flops(model, 1024)
            report["naive_layer_tokens"] = len(places) * n_layers * length
    if arguments.by_hand and arguments.peer == "transformer-lens":
        clock = by_hand(other, pair, [n_layers // 4, n_layers // 2])
        report["batched_by_hand"] = clock.summary(n_layers)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
