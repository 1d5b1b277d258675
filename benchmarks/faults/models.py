"""The healthy models that are damaged, and the text that each of them is read on.

Those under `RULES` are trained here, once a folder of results: eight layers of width 64 on the
first 95 % of Tiny Shakespeare, one for each way of writing into the stream.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import resstream as rs
from resstream.stream.texts import Corpus, read_corpus

RULES: dict[str, dict[str, Any]] = {
    "pre_ln": {"rule": "plain"},
    "sandwich": {"rule": "plain", "placement": "sandwich"},
    "layer_scale": {"rule": {"kind": "layer_scale"}},
    "rezero": {"rule": "rezero"},
    "fixup": {"rule": "fixup"},
    "deepnorm": {"rule": "deepnorm"},
}
"""Names of the trained models, and what their configuration says about the residual rule."""
TEXTS = {"stories260K": "tinystories_sample.txt", "smollm2": "wikitext2_raw_test.txt"}
STALE_STEP = 125
_HELD_OUT = 0.95
_CONTEXT = 128


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the models come from."""

    results: Path
    """Trained models are kept there, in `models`."""
    data: Path | None = None
    """Folder with `stories260K` and `texts`."""
    smollm2: Path | None = None
    """Directory of the converted checkpoint."""

    def has(self, model: str) -> bool:
        """True if `model` can be had."""
        if model == "smollm2":
            return self.smollm2 is not None and self.data is not None
        return model == "demo" or self.data is not None

    def text(self, name: str) -> Path | None:
        """A text of the data folder, or half of the one that models are trained on."""
        if self.data is None:
            return None
        if name in ("train", "held_out"):
            return self._share(name)
        return self.data / "texts" / name

    def _share(self, name: str) -> Path:
        path = self.results / "models" / f"{name}.txt"
        if not path.exists():
            assert self.data is not None, "asked for by `text`"
            whole = (self.data / "texts" / "tinyshakespeare.txt").read_text("utf-8")
            cut = int(_HELD_OUT * len(whole))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(whole[:cut] if name == "train" else whole[cut:], "utf-8")
        return path


@cache
def load_model(name: str, sources: Sources) -> "rs.StreamModel":
    """One of the models; what damages it has to restore it."""
    if not sources.has(name):
        raise SystemExit(f"{name} needs --data DIR (and SmolLM2 --smollm2 DIR)")
    if name == "demo":
        return rs.load("demo")
    if name in RULES:
        return rs.load(_trained(name, sources))
    place = sources.smollm2 if name == "smollm2" else sources.data and sources.data / name
    assert place is not None, "`has` says so"
    return rs.load(place)


@cache
def corpus_of(name: str, sources: Sources, sequences: int | None = None) -> Corpus:
    """4,096 tokens (SmolLM2: 2,048) that the model was not trained on, as far as that is known.

    A text that is too short is followed by what the undamaged model writes.
    """
    wanted = sequences or (16 if name == "smollm2" else 32)
    text = "held_out" if name in RULES else TEXTS.get(name)
    model = load_model(name, sources)
    corpus = read_corpus(
        model,
        None if text is None else sources.text(text),
        context=_CONTEXT,
        max_sequences=wanted,
    )
    missing = wanted - len(corpus.sequences)
    return _followed(corpus, _own_words(model, missing)) if missing > 0 else corpus


def _own_words(model: "rs.StreamModel", count: int) -> Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        start = torch.full((count, 1), model.tokenizer.bos_token_id)
        return model.module.generate(
            start,
            attention_mask=torch.ones_like(start),
            do_sample=True,
            top_k=0,
            eos_token_id=None,
            pad_token_id=0,
            max_new_tokens=_CONTEXT - 1,
        )


def _followed(corpus: Corpus, more: Tensor) -> Corpus:
    fresh = 1 + max(corpus.documents)
    return Corpus(
        sequences=(*corpus.sequences, *more.unbind()),
        documents=(*corpus.documents, *range(fresh, fresh + len(more))),
        description=f"{corpus.description}, and {len(more)} sequences of the model's own",
    )


def _trained(name: str, sources: Sources) -> Path:
    """The checkpoint of a small model, trained if it is not there yet."""
    from resstream.train.config import RunConfig
    from resstream.train.training import run_training

    place = sources.results / "models" / name
    if (place / "model.safetensors").exists():
        return place
    is_post_norm = name == "deepnorm"  # which learns nothing at the rate that suits the others
    shape = {"n_layers": 8, "d_model": 64, "n_heads": 4, "d_mlp": 192, "n_ctx": 128}
    plain = {
        "model": shape | RULES[name],
        "tokenizer": "bytes",
        "training": {
            "steps": 500, "batch": 8, "save_every": STALE_STEP, "keep": 4,
            "learning_rate": 1e-3 if is_post_norm else 3e-3,
            "warmup_steps": 150 if is_post_norm else 50,
        },
        "text": {"files": str(sources.text("train")), "validation": str(sources.text("held_out"))},
        "monitor": False,
        "output": str(place),
    }  # fmt: skip
    run_training(RunConfig.model_validate(plain))
    return place


@cache
def earlier(name: str, sources: Sources) -> "rs.StreamModel":
    """The same model a quarter of its training old: where a stale layer comes from."""
    return rs.load(_trained(name, sources) / "checkpoints" / f"checkpoint-{STALE_STEP}")
