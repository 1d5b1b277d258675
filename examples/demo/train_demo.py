"""Train the model that is embedded in the package, on text of our own making.

Run it as ``python examples/demo/train_demo.py --out resstream/stream/assets/demo``.  It takes about
ten minutes of one CPU core.  Data are drawn without end from `stories.py`, and none comes twice.
`measure_demo.py` measures the result.
"""

import argparse
import itertools
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

import measure_demo
import stories
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from resstream.nn.config import Rotary, TransformerConfig
from resstream.nn.initialisation import DepthScaledNormal
from resstream.nn.pretrained import ResstreamConfig, ResstreamForCausalLM

SEED = 1
TOKENIZER_SEED, SAMPLE_SEED = 2, 3
"""Seeds of the documents that the tokenizer learns from, and of the held-out sample."""
BOUNDARY = "<|endoftext|>"
N_CTX = 128
BATCH = 16
STEPS = 1_600
WARM_UP = 100
PEAK_RATE = 2e-3
WEIGHT_DECAY = 0.1
SAMPLE_BYTES = 80_000


def train_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE in which every word, with its leading space, is one token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1024,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[BOUNDARY],
        show_progress=False,
    )
    texts = itertools.islice(stories.documents(TOKENIZER_SEED), 20_000)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOUNDARY} $A", special_tokens=[(BOUNDARY, tokenizer.token_to_id(BOUNDARY))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOUNDARY,
        eos_token=BOUNDARY,
        pad_token=BOUNDARY,
        model_max_length=N_CTX,
        clean_up_tokenization_spaces=False,
    )


def rows(tokenizer: PreTrainedTokenizerFast, documents: Iterator[str]) -> Iterator[list[int]]:
    """Rows of `N_CTX` tokens; each begins with a document, and what is too long is cut off."""
    row: list[int] = []
    for document in documents:
        row += tokenizer(document)["input_ids"]
        if len(row) >= N_CTX:
            yield row[:N_CTX]
            row = []


def batches(tokenizer: PreTrainedTokenizerFast, seed: int) -> Iterator[Tensor]:
    """Batches ``[batch, pos]``, one a step."""
    source = rows(tokenizer, stories.documents(seed))
    for _ in range(STEPS):
        yield torch.tensor(list(itertools.islice(source, BATCH)))


def make_model(tokenizer: PreTrainedTokenizerFast) -> ResstreamForCausalLM:
    """A plain Pre-LN model of 8 blocks."""
    shape = TransformerConfig(
        n_layers=8,
        d_model=128,
        n_heads=4,
        d_mlp=256,
        d_vocab=len(tokenizer),
        n_ctx=N_CTX,
        positions=Rotary(base=1_000.0),
        mlp="swiglu",
        init=DepthScaledNormal(std=0.08),
        tied=False,
    )
    boundary = tokenizer.bos_token_id
    ids = {"bos_token_id": boundary, "eos_token_id": boundary, "pad_token_id": boundary}
    model = ResstreamForCausalLM(ResstreamConfig.of(shape, **ids))
    # Tokens loud against the first writes, so that heads match tokens from the start.
    torch.nn.init.normal_(model.model.embed.weight, std=0.5)
    torch.nn.init.normal_(model.model.unembed.weight, std=0.02)
    return model


def rate(step: int) -> float:
    """Learning rate over its peak: linear warm-up, then a cosine down to a fiftieth."""
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    progress = (step - WARM_UP) / (STEPS - WARM_UP)
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress))


def train(model: ResstreamForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """AdamW on new text at every step."""
    model.train()
    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    others = [parameter for parameter in model.parameters() if parameter.ndim != 2]
    groups = [
        {"params": matrices, "weight_decay": WEIGHT_DECAY},
        {"params": others, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=PEAK_RATE, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    start = time.monotonic()
    for step, tokens in enumerate(batches(tokenizer, SEED)):
        loss = model(tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 20 == 0:
            print(f"{step} loss {loss.item():.4f} {time.monotonic() - start:.0f} s", flush=True)
        if step % 200 == 199:
            model.eval()
            shares = {
                task: measure_demo.accuracy(model, tokenizer, task, 50)
                for task in ("indirect object", "agreement", "capital", "induction")
            }
            print(step, shares, flush=True)
            model.train()


def write_sample(place: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    """Held-out text of the same generator as JSON lines: each holds the documents of one row."""
    lines: list[str] = []
    row: list[str] = []
    used = 0
    for document in stories.documents(SAMPLE_SEED):
        length = len(tokenizer(document)["input_ids"])
        if row and used + length > N_CTX:
            lines.append(json.dumps({"text": f"{BOUNDARY} ".join(row)}))
            row, used = [], 0
        if length <= N_CTX:
            row.append(document)
            used += length
        if sum(map(len, lines)) >= SAMPLE_BYTES:
            break
    (place / "sample.jsonl").write_text("\n".join(lines) + "\n")


def main() -> None:
    """Train and save: weights in bfloat16, which halves them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    place = parser.parse_args().out
    torch.manual_seed(SEED)
    tokenizer = train_tokenizer()
    model = make_model(tokenizer)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
    train(model, tokenizer)
    model.to(torch.bfloat16).save_pretrained(place)
    tokenizer.save_pretrained(place)
    write_sample(place, tokenizer)


if __name__ == "__main__":
    main()
