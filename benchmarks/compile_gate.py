"""What do the kernels compile to, and is that within bounds?  Needs neither a GPU nor torch.

    python benchmarks/compile_gate.py --out docs/kernel_compile_report.md

Compiles forward and backward for each architecture of `TARGETS`, reads registers, stack (spills),
barriers and the width of memory accesses from the machine code, writes the table, and exits with
status 1 if a bound of `judge` is broken.  Run it without TRITON_INTERPRET.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TARGETS = {
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32),
    "gfx942": ("hip", "gfx942", 64),
}
"""Name -> backend, architecture, threads of a warp."""

FULL = "sm_90"
"""The architecture for which every width is compiled; the others get `FEW_WIDTHS`."""

WIDTHS = (576, 577, 768, 1024, 2048, 4096, 8192, 16384)
FEW_WIDTHS = (576, 577, 4096)
DTYPES = (("fp32", "bf16"), ("bf16", "bf16"))
"""Stream, branch; the normed stream has the branch's dtype."""

MAX_REGISTERS = {"one warp": 192, "forward": 80, "backward": 128, "columns": 128}
"""Of aligned code; what is read in 16-bit pieces may take 8/5 of it, and AMD has twice as many."""
MAX_STACK = {16384: 160}
"""Bytes of spilled registers a thread by width; 0 at every width that is not named."""
MAX_BARRIERS = 4
"""In the forward kernel: for bfloat16 at 4096, and wherever a row has one warp."""
STATS_MAX_REGISTERS, STATS_MAX_BARRIERS = 20, 2
"""What the statistics may add at bfloat16, width 4096; AMD has registers enough (512 a thread)."""


@dataclass(frozen=True)
class Case:
    """One kernel to compile."""

    kernel: str
    target: str
    width: int
    stream: str
    branch: str
    stats: bool
    aligned: bool
    norm: int = 1


@dataclass(frozen=True)
class Code:
    """What it compiled to; `wide` counts 128-bit loads and stores, `narrow` those below 32 bits."""

    warps: int
    registers: int
    stack: int
    barriers: int
    wide: tuple[int, int]
    narrow: tuple[int, int]
    seconds: float


def cases(targets: list[str]) -> Iterator[Case]:
    """Everything that is compiled."""
    for target in targets:
        for width in WIDTHS if target == FULL else FEW_WIDTHS:
            for stream, branch in DTYPES:
                for aligned in (True, False) if width in (576, 4096) else (True,):
                    yield from _of_width(target, width, stream, branch, aligned)


def _of_width(target: str, width: int, stream: str, branch: str, aligned: bool) -> Iterator[Case]:
    for stats in (False, True):
        yield Case("forward", target, width, stream, branch, stats, aligned)
    yield Case("backward", target, width, stream, branch, False, aligned)
    if width > 4096:
        yield Case("columns", target, width, stream, branch, False, aligned)
    if width == 4096 and aligned and target == FULL:
        yield Case("forward", target, width, stream, branch, True, aligned, norm=2)
        yield Case("backward", target, width, stream, branch, False, aligned, norm=2)


def build(case: Case) -> Code:
    """Compile one kernel as the launch would and read its machine code."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel, arguments, warps = _arguments(case)
    signature, constants, attributes = {}, {}, {}
    for i, name in enumerate(kernel.arg_names):
        value = arguments[name]
        is_type = isinstance(value, str)
        signature[name] = value if is_type else "constexpr"
        if not is_type:
            constants[(i,)] = value
        elif case.aligned and (value[0] == "*" or name.endswith("_stride")):
            attributes[(i,)] = [["tt.divisibility", 16]]
    started = time.perf_counter()
    source = ASTSource(kernel, signature, constexprs=constants, attrs=attributes)
    options = {"num_warps": warps, "enable_fp_fusion": False}
    compiled: Any = triton.compile(source, target=GPUTarget(*TARGETS[case.target]), options=options)
    seconds = time.perf_counter() - started
    read = _read_amd if case.target.startswith("gfx") else _read_nvidia
    return read(compiled, warps, seconds)


def _arguments(case: Case) -> tuple[Any, dict[str, Any], int]:
    """Kernel, its arguments (a type, or the value of a constant), and the number of warps."""
    from resstream.kernels import launch_table, triton_backward, triton_forward

    block = 1 << (case.width - 1).bit_length()
    stream, branch = f"*{case.stream}", f"*{case.branch}"
    is_layer = case.norm == 2
    arguments: dict[str, Any] = {
        "WIDTH": case.width, "BLOCK": block, "NORM": case.norm, "CAST_HF": False, "INTERP": False,
        "stream_ptr": stream, "branch_ptr": branch, "new_ptr": stream, "normed_ptr": branch,
        "stats_ptr": "*fp32" if case.stats else None, "rstd_ptr": "*fp32",
        "mean_ptr": "*fp32" if is_layer else None, "weight_ptr": "*fp32",
        "bias_ptr": "*fp32" if is_layer else None, "layer_scale_ptr": "*fp32",
        "gain_ptr": "*fp32", "skip_ptr": None, "gain": "fp32", "skip": "fp32", "eps": "fp32",
        "weight_offset": "fp32", "n_rows": "i32", "stream_stride": "i32", "branch_stride": "i32",
        "dstream_ptr": stream, "dnormed_ptr": branch, "dx_ptr": stream, "dy_ptr": branch,
        "coefficients_ptr": None, "dweight_ptr": "*fp32",
        "dbias_ptr": "*fp32" if is_layer else None, "dscale_ptr": "*fp32", "dskip_ptr": None,
        "dstream_stride": "i32", "dnormed_stride": "i32",
    }  # fmt: skip
    if case.kernel == "forward":
        launch, kernel = launch_table.choose(launch_table.FORWARD, block), "write_forward"
    elif case.kernel == "columns":
        launch, kernel = launch_table.COLUMN_SLICE, "write_backward_columns"
        arguments |= {"COLUMNS": launch.block, "coefficients_ptr": "*fp32"}
    else:
        launch, kernel = launch_table.choose(launch_table.BACKWARD, block), "write_backward"
        if launch is None:
            launch = launch_table.choose(launch_table.BACKWARD_ROWS, block)
            absent = dict.fromkeys(("dweight_ptr", "dbias_ptr", "dscale_ptr", "branch_ptr"))
            arguments |= {"coefficients_ptr": "*fp32"} | absent
        arguments["stream_ptr"] = None  # read only where skip_scale learns
    assert launch is not None
    arguments["ROWS"] = launch.rows
    piece = TARGETS[case.target][2] * 8  # as `launch` has it
    arguments |= {"WARPS": launch.warps, "PIECE": min(piece, block // launch.warps)}
    module = triton_forward if case.kernel == "forward" else triton_backward
    return getattr(module, kernel), arguments, launch.warps


def _read_nvidia(compiled: Any, warps: int, seconds: float) -> Code:
    """Registers and stack from cuobjdump, the rest from the disassembly."""
    import triton

    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    environment = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(compiled.asm["cubin"])

        def dump(option: str) -> str:
            command = [str(tools / "cuobjdump"), option, file.name]
            run = subprocess.run(command, env=environment, capture_output=True, check=True)
            return run.stdout.decode()

        usage, sass = dump("--dump-resource-usage"), dump("-sass")
    registers, stack = (int(re.search(rf"{key}:(\d+)", usage)[1]) for key in ("REG", "STACK"))
    count = {
        name: len(re.findall(pattern, sass))
        for name, pattern in (
            ("wide_loads", r"\bLDG\.E\.\S*128"), ("wide_stores", r"\bSTG\.E\.\S*128"),
            ("narrow_loads", r"\bLDG\.E\.\S*U?16"), ("narrow_stores", r"\bSTG\.E\.\S*U?16"),
            ("barriers", r"\bBAR\.SYNC"),
        )
    }  # fmt: skip
    wide = (count["wide_loads"], count["wide_stores"])
    narrow = (count["narrow_loads"], count["narrow_stores"])
    return Code(warps, registers, stack, count["barriers"], wide, narrow, seconds)


def _read_amd(compiled: Any, warps: int, seconds: float) -> Code:
    """Everything from the assembly text; a spill is counted as 4 bytes of stack."""
    text = compiled.asm["amdgcn"]
    registers, spills = (
        int(re.search(rf"\.{key}:\s+(\d+)", text)[1]) for key in ("vgpr_count", "vgpr_spill_count")
    )
    count = [
        len(re.findall(rf"\b(?:global|buffer)_{pattern}\b", text))
        for pattern in ("load_dwordx4", "store_dwordx4", r"load_(?:ushort|short_d16\w*)",
                        r"store_short\w*")
    ]  # fmt: skip
    barriers = len(re.findall(r"\bs_barrier\b", text))
    return Code(
        warps, registers, 4 * spills, barriers, (count[0], count[1]), (count[2], count[3]), seconds
    )


def judge(found: dict[Case, Code]) -> list[str]:
    """Every bound that is broken, as a sentence."""
    broken = []
    for case, code in found.items():
        even = case.aligned and case.width % 16 == 0
        few = code.warps == 1 or (case.width, case.stream, case.norm) == (4096, "bf16", 1)
        most = MAX_REGISTERS["one warp" if code.warps == 1 else case.kernel]
        most *= 2 if case.target.startswith("gfx") else 1
        # Column sums are stored once a program: only their loads count.
        must_be_wide = code.wide[:1] if case.kernel == "columns" else code.wide
        bounds = {
            "spills": code.stack > MAX_STACK.get(case.width, 0),
            "registers": code.registers > (most if even else most * 8 // 5),
            "no 128-bit access": even and not all(must_be_wide),
            "narrow access": even and any(code.narrow),
            "barriers": even and few and case.kernel == "forward" and code.barriers > MAX_BARRIERS,
        }
        broken += [f"{name}: {case}: {code}" for name, is_broken in bounds.items() if is_broken]
    return broken + _judge_statistics(found)


def _judge_statistics(found: dict[Case, Code]) -> list[str]:
    broken = []
    for target in {case.target for case in found}:
        pair = [
            found.get(Case("forward", target, 4096, "bf16", "bf16", stats, True))
            for stats in (False, True)
        ]
        without, with_stats = pair
        if without is None or with_stats is None:
            continue
        more = with_stats.registers - without.registers, with_stats.barriers - without.barriers
        few_registers = more[0] <= STATS_MAX_REGISTERS or target.startswith("gfx")
        if not few_registers or more[1] > STATS_MAX_BARRIERS:
            broken.append(f"statistics on {target} add {more} registers and barriers")
    return broken


def report(found: dict[Case, Code], broken: list[str]) -> str:
    """The table as Markdown."""
    import triton

    lines = [
        "# What the residual-write kernels compile to",
        "",
        f"Written by `benchmarks/compile_gate.py` with Triton {triton.__version__}; no GPU is"
        " needed for it and none was used. It says nothing about speed.",
        "",
        "RMSNorm (LayerNorm where marked), weight, LayerScale, a gain tensor; float32 parameters;"
        " `enable_fp_fusion=False`. *wide*: 128-bit loads/stores in the code, *narrow*: 16-bit"
        " ones. Unaligned: pointers and strides are not known to be divisible by 16. *stack*:"
        " bytes of spilled registers a thread.",
        "",
        "| target | kernel | width | stream/branch | stats | aligned | warps | registers | stack |"
        " barriers | wide | narrow |",
        "|" + "---|" * 12,
    ]
    for case, code in found.items():
        kernel = case.kernel + (" (layer)" if case.norm == 2 else "")
        cells = (
            case.target, kernel, case.width, f"{case.stream}/{case.branch}",
            "yes" if case.stats else "no", "yes" if case.aligned else "no", code.warps,
            code.registers, code.stack, code.barriers, "{}/{}".format(*code.wide),
            "{}/{}".format(*code.narrow),
        )  # fmt: skip
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    verdict = [f"- {line}" for line in broken] or ["All bounds hold."]
    return "\n".join([*lines, "", "## Bounds", "", *verdict, ""])


def main() -> int:
    """Compile, write the report, judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the report here")
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    options = parser.parse_args()
    if os.environ.get("TRITON_INTERPRET"):
        sys.exit("compile_gate: unset TRITON_INTERPRET; interpreted kernels can't be compiled")
    found = {}
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        for case in cases(options.targets):
            found[case] = build(case)
            print(f"{case}: {found[case]}", flush=True)
    broken = judge(found)
    if options.out:
        options.out.write_text(report(found, broken), encoding="utf-8")
    print("\n".join(broken) or f"{len(found)} kernels: all bounds hold")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
