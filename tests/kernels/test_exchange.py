"""Do the reductions that only a GPU takes give what the interpreter's plain ones give?

The kernels of a GPU reduce tuples with combine functions of their own, and put the pieces of a row
together across warps.  The interpreter can run that code too, only slowly: tiny rows.
"""

import os

import pytest
import torch

from resstream.kernels import launch
from resstream.kernels.reference import combine, measure
from tests.kernels.oracle import NAMES, Case, in_double


@pytest.mark.parametrize(("warps", "piece"), [(1, 16), (2, 4), (4, 4), (2, 8)])
def test_statistics_across_warps(warps, piece, device):
    """Any cut of the row into warps' pieces gives the sums, the extreme and the first channel."""
    from resstream.kernels.triton_forward import write_forward

    operands, options = Case(rows=(2,), width=13, gain=0.5, norm=None).build(device)
    operands.branch[1] = 0
    operands.stream[1, [3, 9]] = torch.tensor([-7.0, 7.0], device=device)
    found = launch.outputs(operands, options, save=False)
    constants = launch._constants(13, launch.Launch(16, warps, 1, 1, ""), options, None)
    write_forward[(2,)](
        operands.stream, operands.branch, *found, None, None, operands.layer_scale, None, None,
        0.5, 1.0, 1e-6, 0.0, 2, 13, 13, BLOCK=16, WARPS=warps, PIECE=piece,
        **{**constants, "INTERP": False},
    )  # fmt: skip
    double = in_double(operands)
    write, new = combine(double)
    wanted = measure(double, write, new, new.norm(dim=-1, keepdim=True))
    assert found.stats is not None
    torch.testing.assert_close(found.stats, wanted.float(), rtol=1e-6, atol=1e-6)
    assert found.stats[1, 4:7].tolist() == [7.0, 3.0, 0.0]


def test_layer_norm_backward_with_its_pair_of_sums(device, monkeypatch):
    """LayerNorm's two means are one reduction on a GPU, two in the interpreter."""
    case = Case(rows=(2,), width=6, norm="layer", bias=True)
    operands, options = case.build(device)
    found = launch.forward(operands, options, save=True)
    saved = launch.Saved(found.new, found.rstd, found.mean)
    grads = (None, torch.ones_like(operands.branch))
    wanted = [isinstance(getattr(operands, name), torch.Tensor) for name in NAMES]
    plain = launch.backward(operands, options, saved, grads, wanted)
    # Rows by the dozen would take minutes here: one at a time, as on a GPU.
    monkeypatch.setattr(launch, "is_interpreted", lambda: False)
    monkeypatch.setattr(launch.launch_table, "INTERPRETER_ROWS", 1)
    paired = launch.backward(operands, options, saved, grads, wanted)
    for ours, theirs in zip(paired, plain, strict=True):
        if ours is not None:
            torch.testing.assert_close(ours, theirs)


def test_this_is_the_triton_that_was_asked_for():
    """`run_versions.py` puts other versions in front; a mix-up would test the wrong one."""
    import triton

    assert triton.__version__ == os.environ.get("EXPECTED_TRITON", triton.__version__)
