"""Run the fault benchmark; what is already in the results file is not run again.

    python -m benchmarks.faults --results faults.jsonl [--smollm2 DIR --text FILE]

Prints one line a case and a summary; exits with 1 if a case went wrong.
"""

import argparse
import json
import sys
from pathlib import Path
from time import monotonic

import torch

import resstream as rs
from benchmarks.faults.cases import DEMO, RANDOM, SMOLLM2, Case
from resstream.stream.texts import read_corpus


def main() -> int:
    """Run what is missing and print the table."""
    options = _parse()
    done = _read(options.results)
    cases = RANDOM + DEMO + (SMOLLM2 if options.smollm2 else [])
    for case in cases:
        if case.name not in done:
            row = _run(case, options.smollm2, options.text)
            with options.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            done[case.name] = row
        print(_line(case, done[case.name]), flush=True)
    return _summary(cases, done)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="fault benchmark of resstream check")
    parser.add_argument(
        "--results", type=Path, required=True, help="JSON lines; resumed if it exists"
    )
    parser.add_argument("--smollm2", type=Path, help="directory of the converted checkpoint")
    parser.add_argument("--text", type=Path, help="text for SmolLM2 (16 x 256 tokens are read)")
    return parser.parse_args()


def _read(path: Path) -> dict[str, dict]:
    if not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line]
    return {row["name"]: row for row in rows}


def _run(case: Case, smollm2: Path | None, text: Path | None) -> dict:
    began = monotonic()
    model = _model(case.source, smollm2)
    for fault in case.faults:
        rs.inject(model, fault.fault, layer=fault.layer, write=fault.write, severity=fault.severity)
    model = rs.load(model.module, tokenizer=model.tokenizer)
    if case.source == "demo":
        model.name = "demo"
    texts = text if case.source == "smollm2" else None
    report = rs.check(model, read_corpus(model, texts, max_sequences=16))
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


def _is_right(case: Case, row: dict) -> bool:
    """The first finding is the expected one, and nothing that was not broken is accused."""
    found = [tuple(place) for place in row["found"]]
    return found[:1] == list(case.expected[:1]) and {p[1:] for p in found} == {
        p[1:] for p in case.expected
    }


def _line(case: Case, row: dict) -> str:
    mark = "ok  " if _is_right(case, row) else "MISS"
    found = ", ".join(f"{code} L{layer} {write}" for code, layer, write in row["found"]) or "-"
    return f"{mark} {case.name:40s} {row['verdict']:12s} {found}  ({row['seconds']} s)"


def _summary(cases: list[Case], done: dict[str, dict]) -> int:
    broken = [case for case in cases if case.expected]
    healthy = [case for case in cases if not case.expected]
    right = sum(_is_right(case, done[case.name]) for case in broken)
    alarms = sum(bool(done[case.name]["found"]) for case in healthy)
    print(f"{right} of {len(broken)} faults located, nobody else accused")
    print(f"{alarms} false alarms on {len(healthy)} healthy models")
    return 0 if right == len(broken) and not alarms else 1


if __name__ == "__main__":
    sys.exit(main())
