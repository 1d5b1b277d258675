"""Are rows beyond 2^31 elements where they should be?  In a process of its own: else it crashes.

The tensor is 4 GiB of address space of which only the touched pages exist.
"""

import os
import subprocess
import sys

import pytest

CODE = """
import torch
from resstream.kernels.dispatch import residual_write

device, stride, n_rows, width = "{device}", 2**30 + 64, 3, 8
assert (n_rows - 1) * stride > 2**31
memory = torch.empty(2 * stride + width, dtype={dtype}, device=device)
far = memory.as_strided((n_rows, width), (stride, 1))
near = torch.arange(n_rows * width, device=device).reshape(n_rows, width).to({dtype})
far.copy_(near)
operands = dict(norm="rms", stats=True, impl="triton")
for stream, branch in ((far, near), (near, far)):
    pair = [t.detach().requires_grad_() for t in (stream, branch)]
    found = residual_write(*pair, gain=torch.ones(1, device=device).requires_grad_(), **operands)
    wanted = residual_write(near, near, **operands)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted))
    {backward}
print("rows found")
"""

BACKWARD = """
    sent = far if stream is near else near
    torch.autograd.backward([found.stream], [sent])
    assert torch.equal(pair[0].grad, near)
"""


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_rows_beyond_two_to_the_31(backward, device):
    lines = BACKWARD if backward else "pass"
    code = CODE.format(device=device, dtype="torch.bfloat16", backward=lines)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "rows found" in done.stdout
