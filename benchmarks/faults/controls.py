"""Healthy models: nothing may be confirmed on any of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Any

import torch

import resstream as rs
from benchmarks.faults.models import RULES, Sources, load_model
from resstream.stream.texts import read_corpus

_SHIPPED = ("demo", "stories260K", "smollm2")
_TEXTS = ("tinystories_sample.txt", "tinyshakespeare.txt", "the_verdict.txt")
_UNTRAINED = ("plain", "layer_scale", "rezero_norm", "deepnorm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """One healthy model and one text."""

    model: str
    """A trained model, ``llama:SEED`` (random), or ``native:RULE:SEED`` (untrained)."""
    text: str | None
    bos: bool | None = None
    sequences: int = 16
    context: int = 128

    @property
    def name(self) -> str:
        """Unique, and stable over runs."""
        begins = {None: "own", True: "BOS", False: "no BOS"}[self.bos]
        return f"{self.model} {self.text or 'default'} {begins} {self.sequences}x{self.context}"


def controls() -> Iterator[Control]:
    """At least forty."""
    for model in _SHIPPED:
        for text in _TEXTS:
            for bos in (True, False):
                yield Control(model=model, text=text, bos=bos)
                if model != "smollm2":
                    yield Control(model=model, text=text, bos=bos, sequences=48, context=64)
        yield Control(model=model, text=_TEXTS[0], sequences=1, context=12)
    yield Control(model="demo", text=None)
    yield Control(model="demo", text=None, sequences=160)
    for name in RULES:
        yield Control(model=name, text="held_out")  # other texts are foreign to them
    for seed in range(6):
        yield Control(model=f"llama:{seed}", text=None)
    for rule in _UNTRAINED:
        for seed in range(2):
            yield Control(model=f"native:{rule}:{seed}", text=None)


def examine(control: Control, sources: Sources) -> dict[str, Any]:
    """What `check` says about a healthy model."""
    began = monotonic()
    model = _model(control.model, sources)
    corpus = read_corpus(
        model,
        sources.text(control.text) if control.text else None,
        context=control.context,
        max_sequences=control.sequences,
        bos=control.bos,
    )
    report = rs.check(model, corpus, remedies=False)
    found = [
        [f.code, f.layer, f.write, f.status, f.severity]
        for f in report.findings
        if f.code != "RS000"
    ]
    return {
        "name": control.name,
        "verdict": report.verdict,
        "found": found,
        "tokens": corpus.n_tokens,
        "writes": len(model.spec.writes),
        "seconds": round(monotonic() - began, 1),
    }


def _model(name: str, sources: Sources) -> "rs.StreamModel":
    kind, _, rest = name.partition(":")
    if kind == "llama":
        return rs.load(_random_llama(int(rest)))
    if kind == "native":
        rule, _, seed = rest.partition(":")
        return rs.load(_untrained(rule, int(seed)))
    return load_model(name, sources)


def _random_llama(seed: int) -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=6 + 2 * (seed % 2),
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
        )
    )


def _untrained(rule: str, seed: int) -> torch.nn.Module:
    from resstream.nn.config import TransformerConfig
    from resstream.nn.transformer import ResidualTransformer

    torch.manual_seed(seed)
    config = TransformerConfig(
        n_layers=8, d_model=64, n_heads=4, d_vocab=128, n_ctx=128, rule={"kind": rule}
    )
    return ResidualTransformer(config)
