"""What does the residual write cost on a CPU, and what do its statistics?

    OMP_NUM_THREADS=1 python benchmarks/cpu_residual.py --json results.json

One thread; the least CPU time of several interleaved runs, so that a busy machine costs patience
and not truth; as multiples of a copy of the same bytes (read stream and branch, write the new
stream and its normed form).  "naive" is what one writes with torch's own operators; "reference" is
`resstream.kernels.reference`, which the product runs on a CPU.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch

from resstream.kernels.dispatch import residual_write
from resstream.kernels.reference import ResidualWrite

SHAPES = ((512, 576), (4096, 576), (512, 4096))
"""Rows, width."""
DTYPES = {
    "f32": (torch.float32, torch.float32),
    "f32/bf16": (torch.float32, torch.bfloat16),
    "bf16": (torch.bfloat16, torch.bfloat16),
}
"""Stream, branch."""
MAX_SHARE = 0.5
"""Of the naive form with statistics, at float32: what the reference with statistics may cost."""


def naive(operands: dict[str, torch.Tensor], *, stats: bool) -> ResidualWrite:
    """Add, norm and eight statistics with one torch operator after the other."""
    stream, branch = operands["stream"].float(), operands["branch"].float()
    write = operands["layer_scale"] * branch
    stored = (stream + write).to(operands["stream"].dtype)
    new = stored.float()
    normed = torch.nn.functional.rms_norm(new, new.shape[-1:], operands["weight"], 1e-6)
    if not stats:
        return ResidualWrite(stored, normed.to(operands["branch"].dtype), None)
    top, channel = new.abs().max(dim=-1)
    columns = [
        write.norm(dim=-1),
        stream.norm(dim=-1),
        new.norm(dim=-1),
        (stream * write).sum(dim=-1),
        top,
        channel.float(),
        (~torch.isfinite(new)).sum(dim=-1).float(),
        branch.norm(dim=-1),
    ]
    return ResidualWrite(stored, normed.to(operands["branch"].dtype), torch.stack(columns, dim=-1))


def candidates(
    operands: dict[str, torch.Tensor], compiled: bool
) -> dict[str, Callable[[], object]]:
    """Name -> what is timed."""
    stream, branch = operands["stream"], operands["branch"]
    new, normed = torch.empty_like(stream), torch.empty_like(branch)

    def write(impl: str, stats: bool) -> Callable[[], object]:
        return lambda: residual_write(**operands, norm="rms", stats=stats, impl=impl)

    found: dict[str, Callable[[], object]] = {
        "copy": lambda: (new.copy_(stream), normed.copy_(branch)),
        "naive": lambda: naive(operands, stats=False),
        "naive + stats": lambda: naive(operands, stats=True),
        "reference": write("torch", False),
        "reference + stats": write("torch", True),
    }
    if compiled:
        found["compile"] = write("compile", False)
        found["compile + stats"] = write("compile", True)
    return found


def cpu_seconds(functions: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Least CPU time of this thread for each, one run of each in turn."""
    best = dict.fromkeys(functions, float("inf"))
    for function in functions.values():
        function()
    for _ in range(repeats):
        for name, function in functions.items():
            started = time.thread_time()
            function()
            best[name] = min(best[name], time.thread_time() - started)
    return best


def measure(rows: int, width: int, dtypes: str, options: argparse.Namespace) -> dict[str, object]:
    """One line of the table; the reference is first held against the naive form."""
    draw = torch.Generator().manual_seed(0)
    stream_dtype, branch_dtype = DTYPES[dtypes]
    operands = {
        "stream": torch.randn(rows, width, generator=draw).to(stream_dtype),
        "branch": torch.randn(rows, width, generator=draw).to(branch_dtype),
        "layer_scale": torch.rand(width, generator=draw),
        "weight": torch.rand(width, generator=draw),
    }
    ours, theirs = residual_write(**operands, norm="rms", stats=True), naive(operands, stats=True)
    torch.testing.assert_close(ours.stats, theirs.stats, rtol=1e-4, atol=1e-2)
    torch.testing.assert_close(ours.stream, theirs.stream)
    torch.compiler.reset()  # else the ninth shape is one too many, and runs uncompiled
    seconds = cpu_seconds(candidates(operands, options.compile), options.repeats)
    copy = seconds["copy"]
    return {
        "rows": rows,
        "width": width,
        "dtypes": dtypes,
        "copy_ms": copy * 1e3,
        "in_copies": {name: value / copy for name, value in seconds.items()},
        "share_of_naive_stats": seconds["reference + stats"] / seconds["naive + stats"],
    }


def main() -> int:
    """Measure, print, write JSON; status 1 if the statistics cost more than `MAX_SHARE`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    lines = []
    for rows, width in SHAPES:
        for dtypes in DTYPES:
            line = measure(rows, width, dtypes, options)
            lines.append(line)
            costs = "  ".join(f"{k} {v:.1f}" for k, v in line["in_copies"].items() if k != "copy")
            share = line["share_of_naive_stats"]
            print(f"{rows}x{width} {dtypes}: {costs}  (copy {line['copy_ms']:.2f} ms;"
                  f" with statistics {share:.0%} of naive)", flush=True)  # fmt: skip
    if options.json:
        machine = {"torch": torch.__version__, "processor": platform.processor()}
        text = json.dumps({"schema": "resstream.bench_cpu/1", **machine, "lines": lines}, indent=1)
        options.json.write_text(text, encoding="utf-8")
    shares = [line["share_of_naive_stats"] for line in lines if line["dtypes"] == "f32"]
    return 1 if max(shares) > MAX_SHARE else 0


if __name__ == "__main__":
    raise SystemExit(main())
