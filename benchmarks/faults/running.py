"""Runs one case: what does the fault cost, and what does `check` say about it?"""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from time import monotonic

import numpy as np

import resstream as rs
from benchmarks.faults.grid import FaultCase
from benchmarks.faults.models import Sources, corpus_of, earlier, load_model
from benchmarks.faults.rows import Row
from resstream.analysis.intervals import bootstrap_interval, by_document
from resstream.analysis.losses import sequence_losses
from resstream.checks.transplants import changed_parts, own_errors
from resstream.errors import UnsupportedModelError

FUNCTIONAL_NATS = 0.02
"""A fault that costs less is silent: it is counted apart, and not checked."""
_FEW_SEQUENCES = 4
"""Enough to see where activations part."""


@contextmanager
def damaged(case: FaultCase, sources: Sources) -> Iterator["rs.StreamModel"]:
    """The model with the fault, whole again when the context closes."""
    model = load_model(case.model, sources)
    corpus_of(case.model, sources)  # which the undamaged model may have a part in
    healthy = {name: value.clone() for name, value in model.module.state_dict().items()}
    try:
        rs.inject(
            model,
            case.fault,
            layer=case.layer,
            write=case.write,
            severity=case.severity,
            other=earlier(case.model, sources) if case.fault == "stale" else None,
        )
        yield model
    finally:
        model.module.load_state_dict(healthy)


@cache
def _healthy_losses(name: str, sources: Sources) -> np.ndarray:
    """Loss of each sequence, summed over tokens, of the model as it should be."""
    return sequence_losses(load_model(name, sources), corpus_of(name, sources))


def screen(case: FaultCase, sources: Sources) -> Row:
    """The paired change of the loss of a damaged model, with an interval."""
    corpus = corpus_of(case.model, sources)
    healthy = _healthy_losses(case.model, sources)  # before the model is damaged
    try:
        with damaged(case, sources) as model:
            change = sequence_losses(model, corpus) - healthy
    except UnsupportedModelError as err:  # such as a gain to scale where there is no norm
        return {"name": case.name, "half": case.half, "functional": False, "refused": str(err)}
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


def examine(case: FaultCase, sources: Sources) -> Row:
    """What `check` finds, first things first."""
    with damaged(case, sources) as model:
        began = monotonic()
        fresh = rs.load(model.module, tokenizer=model.tokenizer)
        fresh.name = case.model
        report = rs.check(fresh, corpus_of(case.model, sources), remedies=False)
    found = [[f.code, f.layer, f.write] for f in report.findings if f.status == "confirmed"]
    others = [[f.code, f.layer, f.write] for f in report.findings if f.status != "confirmed"]
    return {
        "name": case.name,
        "found": found,
        "suspected": others,
        "seconds": round(monotonic() - began, 1),
    }


def contrast(case: FaultCase, sources: Sources) -> Row:
    """Where the damaged model departs from the undamaged one: by weights, and by activations."""
    good = untouched(case.model, sources)
    with damaged(case, sources) as model:
        parts = changed_parts(model, good)
        errors, _ = own_errors(model, good, corpus_of(case.model, sources).head(_FEW_SEQUENCES))
    off = [write for write, error in zip(model.spec.writes, errors, strict=True) if error > 0]
    return {
        "name": case.name,
        "changed": [[part.layer, part.write] for part in parts],
        "diverges": [off[0].layer, off[0].name] if off else None,
    }


@cache
def untouched(name: str, sources: Sources) -> "rs.StreamModel":
    """A copy that nothing damages."""
    model = load_model(name, sources)
    return rs.load(deepcopy(model.module), tokenizer=model.tokenizer)
