"""What can the demo model do, and what does each of its blocks contribute?

Run it as ``python examples/demo/measure_demo.py resstream/stream/assets/demo``.
"""

import argparse
import json
import random
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import stories
import torch
import vocabulary as words
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from resstream.nn.pretrained import ResstreamForCausalLM, register_auto_classes

PROMPT_SEED = 4
N_DOCUMENTS = 60


def indirect_object(rng: random.Random) -> tuple[str, str]:
    """A sentence without its last word, and that word."""
    prompt, _, answer = stories.indirect_object(rng)[:-1].rpartition(" ")
    return prompt, answer


def agreement(rng: random.Random) -> tuple[str, str]:
    """A sentence up to its verb, and the verb."""
    prompt, answer, _ = stories.agreement(rng).rsplit(" ", 2)
    return prompt, answer


def capital(rng: random.Random) -> tuple[str, str]:
    """A question for a capital."""
    country = rng.choice(list(words.CAPITALS))
    return f"The capital of {country} is", words.CAPITALS[country]


def opposite(rng: random.Random) -> tuple[str, str]:
    """A question for an opposite."""
    word = rng.choice(list(words.OPPOSITES))
    return f"The opposite of {word} is", words.OPPOSITES[word]


def colour(rng: random.Random) -> tuple[str, str]:
    """A question for a colour."""
    thing = rng.choice(list(words.COLOURS))
    return f"The colour of {thing} is", words.COLOURS[thing]


def induction(rng: random.Random) -> tuple[str, str]:
    """A list of random words, begun again."""
    chosen = rng.sample(words.LIST_WORDS, 8)
    seen = rng.randint(2, 6)
    return f"{' '.join(chosen)}, {' '.join(chosen[:seen])}", chosen[seen]


TASKS: dict[str, Callable[[random.Random], tuple[str, str]]] = {
    "indirect object": indirect_object,
    "agreement": agreement,
    "capital": capital,
    "opposite": opposite,
    "colour": colour,
    "induction": induction,
}


@torch.inference_mode()
def accuracy(
    model: ResstreamForCausalLM, tokenizer: PreTrainedTokenizerFast, task: str, n_prompts: int = 200
) -> float:
    """Share of prompts whose likeliest next token is the answer.

    For agreement, the verb only has to have the right number: likelier than its other form.
    """
    rng = random.Random(PROMPT_SEED)
    n_right = 0
    for _ in range(n_prompts):
        prompt, answer = TASKS[task](rng)
        logits = model(torch.tensor([tokenizer(prompt)["input_ids"]])).logits[0, -1]
        right = tokenizer.convert_tokens_to_ids("Ġ" + answer)
        if task == "agreement":
            (pair,) = (pair for pair in words.NUMBER_VERBS if answer in pair)
            wrong = tokenizer.convert_tokens_to_ids("Ġ" + pair[answer == pair[0]])
            n_right += bool(logits[right] > logits[wrong])
        else:
            n_right += int(logits.argmax()) == right
    return n_right / n_prompts


@torch.inference_mode()
def held_out_loss(
    model: ResstreamForCausalLM, documents: list[Tensor], silent: str | None = None
) -> float:
    """Cross-entropy in nats per token; `silent` is a write that is set to zero."""
    core = model.model
    hooks = [] if silent is None else [(silent, lambda write, hook: torch.zeros_like(write))]
    total, n_tokens = 0.0, 0
    with core.hooks(fwd_hooks=hooks) if hooks else nullcontext():
        for tokens in documents:
            log_probs = core(tokens[None])[0, :-1].log_softmax(-1)
            total -= log_probs.gather(-1, tokens[1:, None]).sum().item()
            n_tokens += len(tokens) - 1
    return total / n_tokens


def ablation_table(model: ResstreamForCausalLM, documents: list[Tensor]) -> list[str]:
    """Effect of silencing each write and each block: rows of a Markdown table."""
    clean = held_out_loss(model, documents)
    rows = ["| block | attention | MLP | both |", "|---|---|---|---|"]
    for layer, block in enumerate(model.model.blocks):
        effects = [
            held_out_loss(model, documents, f"blocks.{layer}.hook_{name}_out") - clean
            for name in ("attn", "mlp")
        ]
        handle = block.register_forward_hook(lambda module, args, output: args[0])
        effects.append(held_out_loss(model, documents) - clean)
        handle.remove()
        rows.append(f"| {layer} | " + " | ".join(f"{effect:+.3f}" for effect in effects) + " |")
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("place", type=Path)
    place = parser.parse_args().place
    register_auto_classes()
    model = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(place)
    lines = (place / "sample.jsonl").read_text().splitlines()[:N_DOCUMENTS]
    texts = [json.loads(line)["text"] for line in lines]
    documents = [torch.tensor(tokenizer(text)["input_ids"]) for text in texts]
    print(f"held-out loss: {held_out_loss(model, documents):.3f} nats per token")
    for task in TASKS:
        print(f"{task}: {accuracy(model, tokenizer, task):.1%}")
    print("\n".join(ablation_table(model, documents)))


if __name__ == "__main__":
    main()
