"""The standing cases: a fault, and exactly what has to be found; healthy models stay healthy."""

import json
from pathlib import Path
from time import monotonic

import torch

import resstream as rs
from benchmarks.faults.cases import DEMO, RANDOM, SMOLLM2, Case
from benchmarks.faults.rows import Row, read_rows
from resstream.stream.texts import read_corpus


def run(results: Path, smollm2: Path | None, text: Path | None) -> int:
    """Run what is missing and print the table; 1 if a case went wrong."""
    done = read_rows(results)
    cases = RANDOM + DEMO + (SMOLLM2 if smollm2 else [])
    for case in cases:
        if case.name not in done:
            row = _run(case, smollm2, text)
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            done[case.name] = row
        print(_line(case, done[case.name]), flush=True)
    return _summary(cases, done)


def _run(case: Case, smollm2: Path | None, text: Path | None) -> Row:
    began = monotonic()
    model = _model(case.source, smollm2)
    for fault in case.faults:
        rs.inject(model, fault.fault, layer=fault.layer, write=fault.write, severity=fault.severity)
    model = rs.load(model.module, tokenizer=model.tokenizer)
    if case.source == "demo":
        model.name = "demo"
    texts = text if case.source == "smollm2" else None
    report = rs.check(model, read_corpus(model, texts, max_sequences=16), remedies=False)
    found = [[f.code, f.layer, f.write] for f in report.findings if f.status == "confirmed"]
    return {
        "name": case.name,
        "verdict": report.verdict,
        "found": found,
        "seconds": round(monotonic() - began, 1),
    }


def _model(source: str, smollm2: Path | None) -> "rs.StreamModel":
    if source == "smollm2":
        return rs.load(smollm2)
    if not source.startswith("random:"):
        return rs.load(source)
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(int(source.removeprefix("random:")))
    config = LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=6,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
    )  # fmt: skip
    return rs.load(LlamaForCausalLM(config))


def _is_right(case: Case, row: Row) -> bool:
    """The first finding is the expected one, and nothing that was not broken is accused."""
    found = [tuple(place) for place in row["found"]]
    return found[:1] == list(case.expected[:1]) and {p[1:] for p in found} == {
        p[1:] for p in case.expected
    }


def _line(case: Case, row: Row) -> str:
    mark = "ok  " if _is_right(case, row) else "MISS"
    found = ", ".join(f"{code} L{layer} {write}" for code, layer, write in row["found"]) or "-"
    return f"{mark} {case.name:40s} {row['verdict']:12s} {found}  ({row['seconds']} s)"


def _summary(cases: list[Case], done: dict[str, Row]) -> int:
    broken = [case for case in cases if case.expected]
    healthy = [case for case in cases if not case.expected]
    right = sum(_is_right(case, done[case.name]) for case in broken)
    alarms = sum(bool(done[case.name]["found"]) for case in healthy)
    print(f"{right} of {len(broken)} faults located, nobody else accused")
    print(f"{alarms} false alarms on {len(healthy)} healthy models")
    return 0 if right == len(broken) and not alarms else 1
