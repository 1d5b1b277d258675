"""What does `check` cost, in forwards of the model over the same tokens?

    python -m benchmarks.check_cost --model DIR --text FILE [--sequences 16 --tokens 256]

Printed, each against a plain forward (logits of every token) timed in turn with it, medians:

* the passive scan: statistics of every write, the clean loss, and the lens on a sample of tokens
  (a larger one where the first looks odd);
* one confirmation: a changed write, run from its block to the loss on all tokens, the average over
  writes spread evenly over depth, the base run that they share counted in;
* what ranks candidates before that: first-order estimates, and taking every write away on a few
  tokens.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch

import resstream as rs
from resstream.analysis.attribution import estimate_ablations
from resstream.checks.experiments import Lab, Trial
from resstream.checks.rules.rs205_never_recovers import look
from resstream.recording.recorder import record
from resstream.stream.texts import Corpus, read_corpus
from resstream.sweep.variants import zero

_BATCH_TOKENS = 1024
_WRITES = 12


def main() -> None:
    """Time and print."""
    parser = argparse.ArgumentParser(description="cost of resstream check")
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    model = rs.load(options.model)
    corpus = read_corpus(
        model, options.text, context=options.tokens, max_sequences=options.sequences
    )
    writes = model.spec.writes
    step = max(1, len(writes) // _WRITES)
    trials = [Trial(write=write, label="zero", change=zero) for write in writes[step // 2 :: step]]
    every = [Trial(write=write, label="zero", change=zero) for write in writes]

    def scan() -> None:
        lab = Lab(model, corpus, 0)
        record(model, corpus, at_end=lab.hear)
        lab.settle_base()
        look(lab, [])

    parts: dict[str, Callable[[], object]] = {
        "passive scan": scan,
        f"{len(trials)} confirmations": lambda: _informed(model, corpus).run(trials),
        "first-order estimates": lambda: estimate_ablations(model, corpus.head(8)),
        "screening of every write": lambda: _informed(model, corpus).screen(every),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ("forward", *parts)}
    for _ in range(options.repeat):
        seconds["forward"].append(_timed(lambda: _forward(model, corpus)))
        for name, part in parts.items():
            seconds[name].append(_timed(part))
            seconds["forward"].append(_timed(lambda: _forward(model, corpus)))
    plain = statistics.median(seconds["forward"])
    report = {
        "model": model.name,
        "tokens": corpus.n_tokens,
        "threads": torch.get_num_threads(),
        "forward_s": plain,
        "forward_spread_s": max(seconds["forward"]) - min(seconds["forward"]),
        "in_forwards": {name: statistics.median(seconds[name]) / plain for name in parts},
        "per_confirmation": statistics.median(seconds[f"{len(trials)} confirmations"])
        / plain
        / len(trials),
    }
    print(json.dumps(report, indent=1))


def _informed(model: "rs.StreamModel", corpus: Corpus) -> Lab:
    lab = Lab(model, corpus, 0)
    lab.informative = True
    return lab


@torch.no_grad()
def _forward(model: "rs.StreamModel", corpus: Corpus) -> None:
    for batch in corpus.batches(_BATCH_TOKENS):
        model.forward(batch.tokens)


def _timed(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
