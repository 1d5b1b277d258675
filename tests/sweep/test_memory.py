"""What a sweep takes stays within what it was allowed, as the system counts it."""

import json
import subprocess
import sys

import pytest

# In a process of its own: the most that a process ever had can't be set back.
_SCRIPT = """
import json, resource, sys
import torch
from transformers import LlamaConfig, LlamaForCausalLM
import resstream as rs
from resstream.errors import ConfigError
from resstream.sweep.memory import peak_memory

what, length, count, site, metric, megabytes = json.loads(sys.argv[1])
torch.manual_seed(0)
sizes = dict(vocab_size=4000, hidden_size=256, intermediate_size=768, num_hidden_layers=6)
heads = dict(num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=1024)
model = rs.load(LlamaForCausalLM(LlamaConfig(**sizes, **heads)).eval())
tokens = torch.randint(3, 4000, (count, length))

def pair(clean):
    other = list(clean)
    other[-3] = 5
    return {"clean": clean, "corrupted": other, "answer": 7, "wrong": 9}

def run(tokens, memory):
    if what == "ablate":
        return rs.ablate(model, tokens, memory=memory, sites=["blocks.*.attn_out"])
    pairs = [pair(row.tolist()) for row in tokens]
    return rs.patch(model, pairs, site=site, metric=metric, memory=memory)

run(tokens[:2, :8], None)
before = int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
if megabytes is None:  # as little as it says that it needs, and room for a little more
    try:
        run(tokens, 1)
    except ConfigError as error:
        megabytes = float(str(error).split(" needs ")[1].split(" MiB")[0]) + 10
allowed = int(megabytes * 2**20)
run(tokens, allowed)
print(json.dumps([peak_memory() - before, allowed]))
"""


@pytest.mark.parametrize(
    ("what", "length", "count", "site", "metric", "megabytes"),
    [
        ("patch", 1000, 6, "attn_out", "kl", None),  # all six at once would take twice as much
        ("patch", 30, 100, "head_out", "logit_diff", None),
        ("ablate", 1000, 3, "", "", None),
    ],
)
def test_it_stays_within_what_is_allowed(
    what: str, length: int, count: int, site: str, metric: str, megabytes: int | None
) -> None:
    given = json.dumps([what, length, count, site, metric, megabytes])
    ended = subprocess.run(
        [sys.executable, "-c", _SCRIPT, given], check=True, capture_output=True, text=True
    )
    taken, allowed = json.loads(ended.stdout.splitlines()[-1])
    assert taken <= 1.1 * allowed
