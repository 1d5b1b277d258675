"""How fast is the residual write on a GPU, and is it right there?  One script, under eight minutes.

    python benchmarks/gpu.py --json gpu.json

First correctness: the oracle of the tests (float64), equality with the reference bit for bit,
memory errors under compute-sanitizer where it is installed.  Then time: forward, backward and both,
statistics off and on, against a copy of the same bytes measured in the same run, eager torch,
torch.compile, and the peers that are installed; medians with the 10 % and 90 % quantiles, the L2
cache flushed between runs.  Then small writes, which the host bounds, and a whole native model with
recording off and on.  What the time limit leaves out is listed as not measured.

``--smoke`` runs every path with tiny shapes on a CPU, in Triton's interpreter, to see that the
script itself works; its figures mean nothing.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SHAPES = ((65536, 768), (32768, 576), (16384, 2048), (16384, 4096), (8192, 8192))
"""Rows, width: each moves more than four times the L2 cache of an H200 (50 MB)."""
SMALL = (2048, 768)
DTYPES = (("float32", "bfloat16"), ("bfloat16", "bfloat16"), ("float32", "float32"))
MUST_REACH, MAX_STATS = 0.85, 0.03
"""Share of the copy's bandwidth at widths 1024 to 4096; what statistics may add to the time."""

SANITIZED = """
import torch
from resstream.kernels.dispatch import residual_write
for width in (577, 768, 8192):
    x, y = (torch.randn(37, width, device="cuda", requires_grad=True) for _ in range(2))
    w = torch.ones(width, device="cuda", requires_grad=True)
    for norm in ("rms", "layer"):
        out = residual_write(x, y, weight=w, layer_scale=w, norm=norm, stats=True, impl="triton")
        (out.stream.sum() + out.normed.sum()).backward()
torch.cuda.synchronize()
"""


class Bench:
    """Device, time limit, and how something is timed."""

    def __init__(self, device: str, seconds: float) -> None:
        import torch

        self.device, self.deadline = device, time.monotonic() + seconds
        self.is_smoke = device == "cpu"
        self.flush = torch.empty(0 if self.is_smoke else 256 << 20, dtype=torch.int8, device=device)

    def has_time(self) -> bool:
        """Whether another measurement may begin."""
        return time.monotonic() < self.deadline

    def milliseconds(self, function: Callable[[], Any], runs: int = 30) -> dict[str, float]:
        """Median and quantiles of a call, after a warm-up, with a cold L2 cache."""
        import torch

        function()
        if self.is_smoke:
            started = time.perf_counter()
            function()
            return {"median": 1e3 * (time.perf_counter() - started)}
        function()
        marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(runs)]
        for begin, end in marks:
            self.flush.zero_()
            begin.record()
            function()
            end.record()
        torch.cuda.synchronize()
        times = torch.tensor([begin.elapsed_time(end) for begin, end in marks])
        low, middle, high = (times.quantile(q).item() for q in (0.1, 0.5, 0.9))
        return {"median": middle, "q10": low, "q90": high}


def correctness(bench: Bench) -> dict[str, Any]:
    """The oracle of the tests on this device, and how many bits differ from the reference."""
    import torch

    sys.path.insert(0, str(ROOT))
    from tests.kernels.gradients import check
    from tests.kernels.oracle import Case, run

    wide = () if bench.is_smoke else (577, 768, 2048, 4096, 8192, 16384)
    names = [(getattr(torch, a), getattr(torch, b)) for a, b in DTYPES]
    cases = [Case(a, b, norm, bias=True) for a, b in names for norm in ("rms", "layer")]
    cases += [Case(torch.float32, torch.bfloat16, width=width, rows=(67,)) for width in wide]
    found: dict[str, Any] = {"float64 oracle": {}, "bits that differ from the reference": {}}
    for case in cases:
        name = f"{case.stream}/{case.branch} {case.norm} {case.width}".replace("torch.", "")
        try:
            check(case, bench.device)
            found["float64 oracle"][name] = "within bounds"
        except AssertionError as err:
            found["float64 oracle"][name] = f"FAILED: {str(err).splitlines()[0]}"
        operands, options = case.build(bench.device)
        pair = zip(run(operands, options), run(operands, options, "torch"), strict=True)
        differ = {
            k: (a != b).sum().item()
            for k, (a, b) in zip(("new", "normed", "stats"), pair, strict=True)
        }
        found["bits that differ from the reference"][name] = differ
    found["compute-sanitizer"] = sanitize(bench)
    return found


def sanitize(bench: Bench) -> str:
    """What memcheck says of forward and backward at an odd, an even and a wide width."""
    tool = shutil.which("compute-sanitizer")
    if tool is None or bench.is_smoke:
        return "not run: compute-sanitizer is not installed"
    command = [tool, "--tool", "memcheck", sys.executable, "-c", SANITIZED]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=90, check=False
        )
    except subprocess.TimeoutExpired:
        return "not finished within 90 s"
    return next((x for x in done.stdout.splitlines() if "ERROR SUMMARY" in x), done.stderr[-300:])


def operands_of(bench: Bench, rows: int, width: int, dtypes: tuple[str, str], full: bool) -> Any:
    """Random operands that want gradients; `full`: with LayerScale and a gain."""
    import torch

    def normal(*shape: int, dtype: str = "float32") -> torch.Tensor:
        made = torch.randn(*shape, device=bench.device).to(getattr(torch, dtype))
        return made.requires_grad_()

    found = {
        "stream": normal(rows, width, dtype=dtypes[0]),
        "branch": normal(rows, width, dtype=dtypes[1]),
        "weight": normal(width),
    }
    return found | ({"layer_scale": normal(width), "gain": normal(1)} if full else {})


def traffic(rows: int, width: int, operands: dict[str, Any]) -> dict[str, int]:
    """Bytes that forward and backward have to move (docs/performance.md has the formula)."""
    x, y = (operands[name].element_size() for name in ("stream", "branch"))
    is_full = "gain" in operands
    shared = x == y and not is_full
    forward = rows * (width * (2 * x + 2 * y) + 4)
    backward = rows * (width * (3 * x + 2 * y + y * is_full - y * shared) + 4)
    return {"forward": forward, "backward": backward, "both": forward + backward}


def contenders(operands: dict[str, Any], stats: bool) -> Iterator[tuple[str, Any]]:
    """Name and builder of everything that can run this write; returns (new, normed)."""
    from resstream.kernels.dispatch import residual_write

    sys.path.insert(0, str(Path(__file__).parent))
    from gpu_peers import PEERS

    for name, impl in (("resstream", "triton"), ("eager", "torch"), ("compile", "compile")):
        yield (
            name,
            lambda impl=impl: (
                lambda: residual_write(**operands, norm="rms", stats=stats, impl=impl)[:2]
            ),
        )
    if not stats and "gain" not in operands:
        yield from ((name, lambda build=build: build(operands)) for name, build in PEERS.items())


def time_one(bench: Bench, run: Callable[[], Any], leaves: list[Any]) -> dict[str, Any]:
    """Forward without a graph, backward alone, and both."""
    import torch

    with torch.no_grad():
        forward = bench.milliseconds(run)
    outputs = run()
    grads = [torch.randn_like(value) for value in outputs]
    backward = bench.milliseconds(
        lambda: torch.autograd.grad(outputs, leaves, grads, retain_graph=True, allow_unused=True)
    )
    both = bench.milliseconds(lambda: torch.autograd.grad(run(), leaves, grads, allow_unused=True))
    return {"forward": forward, "backward": backward, "both": both}


def copy_times(bench: Bench, moved: dict[str, int]) -> dict[str, Any]:
    """Time of a copy that moves as many bytes: half of them read, half written."""
    import torch

    found = {}
    for name, n_bytes in moved.items():
        source = torch.empty(n_bytes // 8, dtype=torch.float32, device=bench.device)
        target = torch.empty_like(source)
        found[name] = bench.milliseconds(lambda t=target, s=source: t.copy_(s))
    return found


def bandwidth(bench: Bench) -> list[dict[str, Any]]:
    """The table: every shape, dtype pair, plain and full, statistics off and on."""
    lines = []
    shapes = ((8, 64),) if bench.is_smoke else SHAPES
    pairs = DTYPES[:1] if bench.is_smoke else DTYPES
    for (rows, width), dtypes in ((s, d) for s in shapes for d in pairs):
        for full, stats in ((False, False), (True, False), (True, True)):
            operands = operands_of(bench, rows, width, dtypes, full)
            moved = traffic(rows, width, operands)
            line = {"rows": rows, "width": width, "dtypes": "/".join(dtypes), "full": full,
                    "stats": stats, "bytes": moved, "ms": {}}  # fmt: skip
            lines.append(line)
            if not bench.has_time():
                line["ms"] = "not measured: the time limit was reached"
                continue
            line["ms"]["copy"] = copy_times(bench, moved)
            for name, build in contenders(operands, stats):
                line["ms"][name] = attempt(bench, name, build, list(operands.values()), dtypes)
            show(line)
    return lines


def attempt(
    bench: Bench, name: str, build: Callable[[], Any], leaves: list[Any], dtypes: tuple[str, str]
) -> Any:
    """Time a contender; the reason where that can't be done."""
    if name == "compile" and dtypes != DTYPES[0]:
        return "not measured: compiled for float32/bfloat16 only, for want of time"
    if not bench.has_time():
        return "not measured: the time limit was reached"
    import torch

    torch._dynamo.reset()  # else torch.compile gives up after eight shapes, silently
    try:
        return time_one(bench, build(), leaves)
    except Exception as err:  # a peer may fail in any way, and that is a result
        return f"not measured: {type(err).__name__}: {str(err).splitlines()[0][:120]}"


def show(line: dict[str, Any]) -> None:
    """One row of the printed table: share of the copy's bandwidth."""
    copy = line["ms"]["copy"]
    print(f"{line['rows']}x{line['width']} {line['dtypes']} full={line['full']}"
          f" stats={line['stats']}: copy {copy['forward']['median']:.3f} ms forward")  # fmt: skip
    for name, times in line["ms"].items():
        if isinstance(times, str):
            print(f"    {name}: {times}")
        elif name != "copy":
            shares = (f"{part} {t['median']:.3f} ms, {copy[part]['median'] / t['median']:.0%}"
                      for part, t in times.items())  # fmt: skip
            print(f"    {name}: " + "; ".join(shares), flush=True)


def small_writes(bench: Bench) -> dict[str, float]:
    """Microseconds of host and device for one write that is too small to be bound by memory."""
    import torch

    rows, width = (8, 64) if bench.is_smoke else SMALL
    n_calls = 2 if bench.is_smoke else 200
    found = {}
    operands = operands_of(bench, rows, width, DTYPES[0], True)
    for name, build in contenders(operands, True):
        run = build()
        for mode, enabled in (("inference", False), ("with graph", True)):
            with torch.set_grad_enabled(enabled):
                run()
                synchronize(bench)
                started = time.perf_counter()
                for _ in range(n_calls):
                    run()
                synchronize(bench)
            found[f"{name}, {mode}"] = 1e6 * (time.perf_counter() - started) / n_calls
    return found


def synchronize(bench: Bench) -> None:
    """Wait for the device."""
    import torch

    if not bench.is_smoke:
        torch.cuda.synchronize()


def whole_model(bench: Bench) -> dict[str, float]:
    """Milliseconds of a native model of SmolLM2's shape: forward alone, and recorded."""
    import torch

    import resstream
    from resstream.nn.config import TransformerConfig

    shape = {"n_layers": 30, "d_model": 576, "n_heads": 9, "d_vocab": 49152, "n_ctx": 512}
    if bench.is_smoke:
        shape = {"n_layers": 2, "d_model": 64, "n_heads": 4, "d_vocab": 128, "n_ctx": 16}
    torch.manual_seed(0)
    model = resstream.load(resstream.ResidualTransformer(TransformerConfig(**shape)),
                           device=bench.device)  # fmt: skip
    n_tokens = shape["n_ctx"]
    tokens = torch.randint(shape["d_vocab"], (8, n_tokens), device=bench.device)
    with torch.no_grad():
        forward = bench.milliseconds(lambda: model.forward(tokens), 10)["median"]
    recorded = bench.milliseconds(lambda: resstream.record(model, tokens), 5)["median"]
    return {"forward": forward, "recorded": recorded, "overhead": recorded / forward - 1}


def judge(lines: list[dict[str, Any]]) -> list[str]:
    """Which goals are missed, as sentences."""
    missed = []
    for line in lines:
        times = line["ms"]
        if isinstance(times, str) or isinstance(times["resstream"], str):
            missed.append(f"{line['rows']}x{line['width']} {line['dtypes']}: not measured")
            continue
        if 1024 <= line["width"] <= 4096:
            for part in ("forward", "backward"):
                share = times["copy"][part]["median"] / times["resstream"][part]["median"]
                if share < MUST_REACH:
                    missed.append(f"{line['rows']}x{line['width']} {line['dtypes']} {part}:"
                                  f" {share:.0%} of a copy")  # fmt: skip
    return missed + _judge_statistics(lines)


def _judge_statistics(lines: list[dict[str, Any]]) -> list[str]:
    missed = []
    for off, on in pairwise(lines):
        if not on["stats"] or off["stats"] or isinstance(on["ms"], str):
            continue
        pair = [line["ms"].get("resstream") for line in (off, on)]
        if all(isinstance(times, dict) for times in pair):
            more = pair[1]["forward"]["median"] / pair[0]["forward"]["median"] - 1
            if more > MAX_STATS:
                missed.append(f"{on['rows']}x{on['width']} {on['dtypes']}: statistics {more:+.1%}")
    return missed


def main() -> int:
    """Run everything that the time allows; status 1 if a goal is missed, 2 without a device."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--seconds", type=float, default=400, help="time limit of the big table")
    parser.add_argument("--smoke", action="store_true", help="tiny, on a CPU; figures mean nothing")
    options = parser.parse_args()
    if options.smoke:
        os.environ["TRITON_INTERPRET"] = "1"
    import torch
    import triton

    if not options.smoke and not torch.cuda.is_available():
        print("gpu.py: no CUDA or ROCm device is visible to torch; nothing was measured.\n"
              "Without one: benchmarks/compile_gate.py reads the compiled kernels, pytest"
              " tests/kernels runs them in the interpreter.", file=sys.stderr)  # fmt: skip
        return 2
    bench = Bench("cpu" if options.smoke else "cuda", options.seconds)
    device = "smoke run on a CPU" if options.smoke else torch.cuda.get_device_name()
    report: dict[str, Any] = {"schema": "resstream.bench_gpu/1", "device": device,
                              "torch": torch.__version__, "triton": triton.__version__}  # fmt: skip
    report["correctness"] = correctness(bench)
    print(json.dumps(report, indent=1), flush=True)
    report["small_us"] = small_writes(bench)
    report["model_ms"] = whole_model(bench)
    print(json.dumps({k: report[k] for k in ("small_us", "model_ms")}, indent=1), flush=True)
    report["lines"] = bandwidth(bench)
    report["missed"] = judge(report["lines"])
    if options.json:
        options.json.write_text(json.dumps(report, indent=1), encoding="utf-8")
    print("\n".join(["goals missed:", *report["missed"]] if report["missed"] else ["goals met"]))
    failed = "FAILED" in json.dumps(report["correctness"])
    return 1 if failed or (report["missed"] and not options.smoke) else 0


if __name__ == "__main__":
    sys.exit(main())
