"""How many of the cells that matter does the estimate of attribution patching find?

For each pair every cell is patched exactly; the k cells with the largest effects are compared with
the k largest estimates, plain (one backward) and with GradDrop, AtP*'s correction for gradients
that cancel (one backward a layer).  AtP*'s other correction concerns queries and keys, which are no
sites here.  `--out` writes the table as Markdown.

    python -m benchmarks.recall --model DIR --pairs FILE --take 6 --out docs/attribution_patching.md

Reference: Kramar et al. (2024), "AtP*", arXiv:2403.00745.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import resstream as rs
from resstream.analysis.attribution_patching import recall
from resstream.analysis.pairs import Pair, read_pairs

SITES = ("resid_pre", "attn_out", "mlp_out")
TOP = (5, 20, 50)
AGAINST_THE_PAPER = """
## Against the paper

Kramár et al. (2024), "AtP*", arXiv:2403.00745, has two corrections. What is said here of them was
checked against summaries of the paper and against a public implementation that names its equations
(koayon/atp_star); the paper's own sections on them were not at hand.

* GradDrop: the contribution of a node is the mean over pairs of `sum_l |I_l| / (L - 1)`, where
  `I_l` is the estimate with no gradient through what layer l writes (its equation 11). That is what
  `grad_drop=True` computes: all writes of a layer are dropped together, sizes are taken for each
  pair before they are averaged, and L - 1 it is because a write's own layer gives 0.
* QK fix: for queries and keys as nodes the softmax is computed again with the one patched, and the
  gradient is that of the attention weights (its equations 7 to 10). Queries and keys are no sites
  here, so there is nothing that it would apply to. Saturated attention may spoil estimates at
  `resid_pre` as well, which read through all of a block; that was not measured by itself.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """Recall of one way to estimate, over the pairs."""

    site: str
    how: str
    recalls: tuple[tuple[float, ...], ...]
    """By pair, for each k of `TOP`."""
    pearson: tuple[float, ...]
    """Correlation of the sizes of estimates and effects, by pair."""


def measure(model: Any, pairs: list[Pair]) -> Iterator[Row]:
    """Run both, site by site."""
    for site in SITES:
        exact = [rs.patch(model, pair, site=site).effects for pair in pairs]
        for how, grad_drop in (("gradient", False), ("with GradDrop", True)):
            recalls: list[tuple[float, ...]] = []
            pearson: list[float] = []
            for pair, wanted in zip(pairs, exact, strict=True):
                found = rs.attribution_patch(model, pair, site=site, grad_drop=grad_drop).estimates
                recalls.append(tuple(recall(found, wanted, k) for k in TOP))
                sizes = np.abs([found.ravel(), wanted.ravel()])
                pearson.append(float(np.corrcoef(sizes)[0, 1]))
            yield Row(site, how, tuple(recalls), tuple(pearson))


def table(rows: list[Row], name: str, n_pairs: int, command: str) -> str:
    """The rows as a page of Markdown."""
    heads = " | ".join(f"recall of the top {k}" for k in TOP)
    lines = [
        "# What attribution patching finds",
        "",
        "Output of",
        "",
        f"    {command}",
        "",
        f"on {name}, {n_pairs} pairs, logit difference, denoising. Recall is the share of the k",
        "cells (layer and position) with the largest exact effects that are among the k largest",
        "estimates: mean over pairs, the smallest in brackets. Pearson is that of the sizes, over",
        "all cells. Those before the first differing token are easy: both are 0 there.",
        "",
        f"| site | estimate | {heads} | Pearson |",
        "|---|---|" + "---|" * (len(TOP) + 1),
    ]
    for row in rows:
        values = np.array(row.recalls)
        cells = [f"{values[:, i].mean():.2f} ({values[:, i].min():.2f})" for i in range(len(TOP))]
        lines.append(
            f"| {row.site} | {row.how} | {' | '.join(cells)} | {np.mean(row.pearson):.2f} |"
        )
    lines += [
        "",
        "An estimate only chooses which cells to run: `resstream patch --screen K` estimates all",
        "cells, runs the K most promising exactly, and reports how far the estimate was off.",
    ]
    return "\n".join(lines) + "\n" + AGAINST_THE_PAPER


def main() -> None:
    """Measure, print, and write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", required=True)
    parser.add_argument("--pairs", required=True)
    parser.add_argument("--take", type=int, default=6, help="pairs, spread over the file")
    parser.add_argument("--out")
    arguments = parser.parse_args()
    model = rs.load(arguments.model)
    pairs = read_pairs(arguments.pairs)
    chosen = [pairs[i * len(pairs) // arguments.take] for i in range(arguments.take)]
    name, source = Path(arguments.model).name, Path(arguments.pairs).name
    command = f"python -m benchmarks.recall --model {name} --pairs {source} --take {len(chosen)}"
    page = table(list(measure(model, chosen)), name, len(chosen), command)
    print(page)
    if arguments.out:
        Path(arguments.out).write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
