"""Which layer do model-clinic and torchmortem name for the same faults?

    pip install model-clinic torchmortem
    python -m benchmarks.faults.peers --results DIR --data DIR

A sample of the half that is reported, on the small models.  Both name parameters or modules; the
first finding that the undamaged model does not have counts, and the layer alone has to be right.
model-clinic reads the weights; torchmortem watches 24 steps of training (AdamW, 1e-4) on the text
of the check.
"""

import argparse
import logging
import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import torch

import resstream as rs
from benchmarks.faults.grid import FaultCase, cases
from benchmarks.faults.models import Sources, corpus_of, load_model
from benchmarks.faults.rows import read_rows
from benchmarks.faults.running import damaged
from benchmarks.faults.scoring import wilson
from resstream.analysis.losses import token_losses

Finding = tuple[str, tuple[int, ...]]
"""What is said, and the layers it is said about."""
_STEPS = 24


def model_clinic(model: "rs.StreamModel", name: str, sources: Sources) -> list[Finding]:
    """Its static diagnosis, errors first."""
    from model_clinic import diagnose

    del name, sources
    found: list[Any] = diagnose(model.module.state_dict(), plugins=False)
    order = {"ERROR": 0, "WARN": 1}
    found = sorted(
        (item for item in found if item.severity in order), key=lambda item: order[item.severity]
    )
    return [(item.condition, _layers([item.param_name])) for item in found]


def torchmortem(model: "rs.StreamModel", name: str, sources: Sources) -> list[Finding]:
    """What it reports about a few steps of training, in its own order."""
    from torchmortem import Autopsy

    module = deepcopy(model.module).train()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4)
    batches = [batch.tokens for batch in corpus_of(name, sources).batches(512)]
    with Autopsy(module, optimizer=optimizer) as autopsy:
        for step in range(_STEPS):
            tokens = batches[step % len(batches)]
            loss = token_losses(module(tokens).logits, tokens).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            autopsy.step(loss=loss.item())
    report: Any = autopsy.get_report()
    found = [item for item in report.findings if item.severity > 0]
    return [(item.title, _layers(item.affected_layers)) for item in found]


PEERS: dict[str, Callable[["rs.StreamModel", str, Sources], list[Finding]]] = {
    "model-clinic": model_clinic,
    "torchmortem": torchmortem,
}


def _layers(names: list[str]) -> tuple[int, ...]:
    found = (re.search(r"\.(\d+)\.", f".{name}.") for name in names)
    return tuple(sorted({int(match.group(1)) for match in found if match}))


@cache
def _healthy(peer: str, name: str, sources: Sources) -> tuple[Finding, ...]:
    return tuple(PEERS[peer](load_model(name, sources), name, sources))


def first_layers(peer: str, case: FaultCase, sources: Sources) -> tuple[int, ...] | None:
    """Layers of the first finding about any layer that the undamaged model does not have."""
    before = set(_healthy(peer, case.model, sources))
    with damaged(case, sources) as model:
        found = PEERS[peer](model, case.model, sources)
    return next((item[1] for item in found if item[1] and item not in before), None)


def main() -> None:
    """Run both and print one line each."""
    parser = argparse.ArgumentParser(description="the fault benchmark for other tools")
    parser.add_argument("--results", type=Path, required=True, help="as for benchmarks.faults")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cases", type=int, default=60, help="a sample, in an order by hash")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    sources = Sources(options.results, options.data)
    screens = read_rows(options.results / "screens.jsonl")
    costly = {name for name, row in screens.items() if row["functional"]}
    chosen = sorted(
        (c for c in cases() if c.half == "report" and c.name in costly and c.model != "smollm2"),
        key=lambda case: case.order,
    )[: options.cases]
    lines = ["| tool | faults | right layer | 95 % | healthy models with a finding |"]
    lines += ["|---|---|---|---|---|", *(_line(peer, chosen, sources) for peer in PEERS)]
    print("\n".join(lines))
    (options.results / "peers.md").write_text("\n".join(lines) + "\n", "utf-8")


def _line(peer: str, chosen: Sequence[FaultCase], sources: Sources) -> str:
    hits = [_is_right(case, first_layers(peer, case, sources)) for case in chosen]
    low, high = wilson(sum(hits), len(hits))
    models = {case.model for case in chosen}
    alarms = sum(any(item[1] for item in _healthy(peer, name, sources)) for name in models)
    return (
        f"| {peer} | {len(hits)} | {sum(hits)} ({sum(hits) / len(hits):.1%}) | {low:.0%} to "
        f"{high:.0%} | {alarms} of {len(models)} |"
    )


def _is_right(case: FaultCase, named: tuple[int, ...] | None) -> bool:
    """One layer is named, or two for faults that concern two, and it is a damaged one."""
    return named is not None and len(named) <= len(case.layers) and set(named) <= case.layers


if __name__ == "__main__":
    main()
