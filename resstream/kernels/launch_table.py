"""With how many warps and rows is a kernel launched at which width?  One table, with reasons.

No autotuning: the same width gives the same launch, so the same input gives the same bits, and a
row never learns how many rows there are.  The figures are register counts and spills of compiled
code (docs/kernel_compile_report.md); none of them was timed on a GPU so far, see
docs/performance.md for what is to be tried there first.
"""

from dataclasses import dataclass

MAX_WIDTH = 16384
"""Widest row that the kernels take: beyond it a program of 32 warps has too few registers."""

INTERPRETER_ROWS = 64
"""Rows of a program in Triton's interpreter, whose time goes by operations, not by elements."""


@dataclass(frozen=True)
class Launch:
    """How one kernel is launched up to some width."""

    block: int
    """Widest row, in channels padded to a power of two."""
    warps: int
    rows: int
    """Rows of a program at a time."""
    programs_per_core: int
    """Resident programs a multiprocessor; used where programs walk over rows."""
    reason: str


FORWARD: tuple[Launch, ...] = (
    Launch(128, 1, 4, 0, "a row fills less than a warp's 128-bit loads: four rows share it"),
    Launch(1024, 1, 1, 0, "one warp a row: reductions need no barrier"),
    Launch(2048, 4, 1, 0, "16 values a thread: two 128-bit loads of bfloat16"),
    Launch(4096, 8, 1, 0, "16 values a thread: two 128-bit loads of bfloat16"),
    Launch(8192, 16, 1, 0, "16 values a thread; 8 warps would hold 32"),
    Launch(16384, 32, 1, 0, "as before; with statistics a float32 stream spills 24 bytes"),
)

BACKWARD: tuple[Launch, ...] = (
    Launch(128, 1, 4, 32, "as forward"),
    Launch(512, 1, 1, 16, "one warp a row: no barrier"),
    Launch(1024, 4, 1, 8, "column sums take 8 values a thread and more: four warps"),
    Launch(2048, 8, 1, 2, "column sums stay in registers"),
    Launch(4096, 16, 1, 1, "half the registers a thread of 8 warps, the same number of programs"),
)
"""One kernel that keeps the column sums in registers."""

BACKWARD_ROWS: tuple[Launch, ...] = (
    Launch(8192, 16, 1, 2, "no column sums: 16 values a thread"),
    Launch(16384, 32, 1, 1, "no column sums; 64 registers a thread spill some 100 bytes"),
)
"""Beyond that: row gradients in one kernel, column sums in another (`COLUMN_SLICE`)."""

COLUMN_SLICE = Launch(256, 4, 8, 8, "eight rows of 512 bytes: whole sectors, 16 values a thread")
"""Launch of the column sums: `block` channels by `rows` rows a program at a time."""


def choose(table: tuple[Launch, ...], block: int) -> Launch | None:
    """First row of the table that is wide enough; None where the table ends before."""
    return next((launch for launch in table if block <= launch.block), None)
