"""Runs one case: what does the fault cost, and what does `check` say about it?"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

import resstream as rs
from benchmarks.faults.grid import FaultCase
from resstream.analysis.intervals import bootstrap_interval, by_document
from resstream.analysis.losses import sequence_losses
from resstream.stream.texts import Corpus, read_corpus

FUNCTIONAL_NATS = 0.02
"""A fault that costs less is silent: it is counted apart, and not checked."""
_SEQUENCES = 16


@lru_cache
def load_model(name: str, data: Path | None) -> "rs.StreamModel":
    """One of the trained models; what damages it has to restore it."""
    if name == "demo":
        return rs.load("demo")
    if data is None:
        raise SystemExit(f"{name} needs --data DIR")
    return rs.load(data / name)


@contextmanager
def damaged(case: FaultCase, data: Path | None) -> Iterator["rs.StreamModel"]:
    """The model with the fault, whole again when the context closes."""
    model = load_model(case.model, data)
    healthy = {name: value.clone() for name, value in model.module.state_dict().items()}
    try:
        rs.inject(model, case.fault, layer=case.layer, write=case.write, severity=case.severity)
        yield model
    finally:
        model.module.load_state_dict(healthy)


@lru_cache
def corpus_of(name: str, data: Path | None) -> Corpus:
    """The text that a model is checked on."""
    model = load_model(name, data)
    texts = None if name == "demo" or data is None else data / "texts" / "tinystories_sample.txt"
    return read_corpus(model, texts, context=128, max_sequences=_SEQUENCES)


@lru_cache
def healthy_losses(name: str, data: Path | None) -> np.ndarray:
    """Loss of each sequence, summed over tokens, of the model as it should be."""
    return sequence_losses(load_model(name, data), corpus_of(name, data))


def screen(case: FaultCase, model: "rs.StreamModel", data: Path | None) -> dict[str, Any]:
    """The paired change of the loss of a damaged model, with an interval."""
    corpus = corpus_of(case.model, data)
    change = sequence_losses(model, corpus) - healthy_losses(case.model, data)
    counts = np.array([len(sequence) - 1 for sequence in corpus.sequences])
    cost = float(change.sum() / counts.sum())
    low, high = bootstrap_interval(*by_document(change, counts, np.array(corpus.documents)))
    functional = not np.isfinite(cost) or (cost >= FUNCTIONAL_NATS and low > 0)
    return {
        "name": case.name,
        "half": case.half,
        "cost": _plain(cost),
        "ci": [_plain(low), _plain(high)],
        "functional": bool(functional),
    }


def _plain(value: float) -> float | str:
    return value if np.isfinite(value) else str(value)


def examine(case: FaultCase, model: "rs.StreamModel", data: Path | None) -> dict[str, Any]:
    """What `check` finds, first things first."""
    began = monotonic()
    fresh = rs.load(model.module, tokenizer=model.tokenizer)
    fresh.name = case.model
    report = rs.check(fresh, corpus_of(case.model, data), remedies=False)
    found = [[f.code, f.layer, f.write] for f in report.findings if f.status == "confirmed"]
    others = [[f.code, f.layer, f.write] for f in report.findings if f.status != "confirmed"]
    return {"found": found, "suspected": others, "seconds": round(monotonic() - began, 1)}
