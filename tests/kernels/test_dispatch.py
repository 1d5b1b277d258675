"""Does the dispatch run what it says, say why, and refuse what has no meaning?"""

import subprocess
import sys

import pytest
import torch

from resstream.errors import ConfigError
from resstream.kernels import dispatch
from resstream.kernels.dispatch import plan_write, residual_write
from resstream.kernels.reference import WriteOperands, WriteOptions
from tests.kernels.oracle import Case

OPTIONS = WriteOptions(norm="rms", out_dtype=torch.float32)


def plan(impl="triton", options=OPTIONS, **operands):
    """Plan a small write; operands replace the defaults."""
    given = {"stream": torch.zeros(2, 3, 8), "branch": torch.zeros(2, 3, 8), **operands}
    return plan_write(WriteOperands(**given), options, impl)


def test_cpu_takes_torch():
    assert plan("auto") == ("torch", "tensors are on cpu")


@pytest.mark.parametrize("impl", ["torch", "compile", "triton"])
def test_what_is_asked_for_runs(impl, device):
    tensor = torch.zeros(2, 8, device=device)
    assert plan(impl, stream=tensor, branch=tensor) == (impl, "asked for")


WIDE = {"stream": torch.zeros(1, 16385), "branch": torch.zeros(1, 16385)}


@pytest.mark.parametrize(
    ("operands", "reason"),
    [
        (
            {"gain": torch.ones(2, 1, 8)},
            r"gain has shape \[2, 1, 8\]; the kernels take one element",
        ),
        ({"skip_scale": torch.ones(8)}, r"skip_scale has shape \[8\]"),
        ({"weight": torch.ones(2, 1, 8)}, r"weight has shape \[2, 1, 8\]; the kernels take \[8\]"),
        ({"layer_scale": torch.ones(1)}, r"layer_scale has shape \[1\]"),
        ({"branch": torch.zeros(2, 3, 8).double()}, "compute in float32, got torch.float64"),
        (WIDE, "d_model is 16385; the kernels hold rows of up to 16384"),
        ({"weight": torch.ones(8, device="meta")}, "weight is on meta, the stream on cpu"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value,
)
def test_what_the_kernels_do_not_cover(operands, reason):
    with pytest.raises(ConfigError, match=rf"impl='triton' can't run .*{reason}.*impl='auto'"):
        plan("triton", **operands)
    assert plan("auto", **operands).impl == "torch"


def test_float64_output_is_left_to_torch():
    options = WriteOptions(norm="rms", out_dtype=torch.float64)
    assert "float64" in plan("auto", options).reason


def test_without_triton(monkeypatch):
    monkeypatch.setattr(dispatch, "_has_triton", lambda: False)
    tensor = torch.zeros(2, 8, device="meta")
    assert plan("auto", stream=tensor, branch=tensor) == ("torch", "triton is not installed")
    with pytest.raises(ConfigError, match="triton is not installed"):
        plan("triton")


def test_other_devices_take_torch():
    tensor = torch.zeros(2, 8, device="meta")
    assert "tensors are on meta" in plan("auto", stream=tensor, branch=tensor).reason


X = torch.zeros(2, 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"branch": torch.zeros(8)}, r"one shape \[..., d_model\], got \[2, 8\] and \[8\]"),
        ({"stream": torch.zeros(()), "branch": torch.zeros(())}, "one shape"),
        ({"stream": torch.zeros(2, 0), "branch": torch.zeros(2, 0)}, "one shape"),
        ({"branch": torch.zeros(2, 8, dtype=torch.int64)}, "must be floating point"),
        ({"norm": "batch"}, "norm must be 'rms', 'layer' or None, got 'batch'"),
        ({"cast": "start"}, "cast must be 'end' or 'hf', got 'start'"),
        ({"weight": torch.ones(8)}, "weight and bias belong to a norm"),
        ({"impl": "cuda"}, "impl must be one of auto, torch, triton, compile, got 'cuda'"),
    ],
    ids=str,
)
def test_refusals(arguments, message):
    with pytest.raises(ValueError, match=message):
        residual_write(**{"stream": X, "branch": X, **arguments})


def test_auto_runs_on_any_cpu_tensor():
    operands, options = Case(rows=(2, 3)).build("cpu")
    auto = residual_write(**vars(operands), **vars(options))
    torch_ = residual_write(**vars(operands), **vars(options), impl="torch")
    assert all(torch.equal(a, b) for a, b in zip(auto, torch_, strict=True))


def test_normed_has_the_branch_dtype_by_default():
    branch = torch.zeros(2, 8, dtype=torch.bfloat16)
    _, normed, _ = residual_write(X, branch, norm="rms")
    assert normed is not None
    assert normed.dtype == torch.bfloat16


def test_torch_path_needs_no_triton():
    """Neither the reference nor the dispatch imports triton on a CPU."""
    code = (
        "import sys, torch\n"
        "from resstream.kernels.dispatch import residual_write\n"
        "residual_write(torch.zeros(2, 8), torch.zeros(2, 8), norm='rms', stats=True)\n"
        "sys.exit('triton' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
