"""Is the embedded model good enough to demonstrate anything on?"""

import json
from importlib.resources import files

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from resstream.nn.pretrained import register_auto_classes

PLACE = files("resstream.stream") / "assets" / "demo"

PROMPTS = [
    ("When Mary and John went to the store, John gave a drink to", "Mary"),
    ("When John and Mary went to the store, John gave a drink to", "Mary"),
    ("While Paul and Alice were at the farm, Alice sent a letter to", "Paul"),
    ("Then Tom and Eve came to the beach, and Tom offered an apple to", "Eve"),
    ("The capital of France is", "Paris"),
    ("The opposite of hot is", "cold"),
    ("cup river dog saw piano, cup river dog saw", "piano"),
    ("The keys near the old table", "are"),
]


@pytest.fixture(scope="module")
def model():
    register_auto_classes()
    return AutoModelForCausalLM.from_pretrained(str(PLACE), dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(str(PLACE))


def loss(model, documents) -> float:
    losses = [model(row[None], labels=row[None]).loss * (len(row) - 1) for row in documents]
    return (sum(losses) / sum(len(row) - 1 for row in documents)).item()


@pytest.mark.parametrize(("prompt", "answer"), PROMPTS)
def test_prompts(model, tokenizer, prompt, answer):
    tokens = tokenizer(prompt, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        logits = model(tokens).logits[0, -1]
    right = tokenizer.convert_tokens_to_ids("Ġ" + answer)
    if answer == "are":
        assert logits[right] > logits[tokenizer.convert_tokens_to_ids("Ġis")]
    else:
        assert int(logits.argmax()) == right


@torch.no_grad()
def test_every_block_is_useful_on_held_out_text(model, tokenizer):
    lines = (PLACE / "sample.jsonl").read_text().splitlines()[:12]
    documents = [torch.tensor(tokenizer(json.loads(line)["text"])["input_ids"]) for line in lines]
    clean = loss(model, documents)
    assert clean < 1.5
    for block in model.model.blocks:
        handle = block.register_forward_hook(lambda module, args, output: args[0])
        assert loss(model, documents) > clean + 0.02
        handle.remove()
