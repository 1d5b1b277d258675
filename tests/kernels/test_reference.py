"""Is the definition the formula it claims to be, and are its gradients right?"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from resstream.kernels import reference
from resstream.kernels.dispatch import residual_write
from resstream.kernels.reference import STATISTICS, WriteOperands, WriteOptions, reference_write
from tests.kernels.oracle import Case, run


def double_leaves(**shapes):
    draw = torch.Generator().manual_seed(3)
    return {
        name: torch.randn(shape, generator=draw, dtype=torch.float64).requires_grad_()
        for name, shape in shapes.items()
    }


@pytest.mark.parametrize("cast", ["end", "hf"])
@pytest.mark.parametrize("norm", ["rms", "layer", None])
def test_derivatives_in_float64(norm, cast):
    """First and second derivatives of every operand against finite differences."""
    tensors = double_leaves(
        stream=(2, 5), branch=(2, 5), layer_scale=(5,), gain=(1,), skip_scale=()
    )
    if norm:
        tensors |= double_leaves(weight=(5,), bias=(5,))

    def write(*values):
        operands = WriteOperands(**dict(zip(tensors, values, strict=True)))
        options = WriteOptions(norm=norm, out_dtype=torch.float64, cast=cast, weight_offset=1.0)
        found = reference_write(operands, options)
        return tuple(value for value in found[:2] if value is not None)

    assert torch.autograd.gradcheck(write, tuple(tensors.values()))
    assert torch.autograd.gradgradcheck(write, tuple(tensors.values()))


@pytest.mark.parametrize("shape", [(2, 1, 6), (2, 1, 1)], ids=str)
def test_a_gate_for_each_sample(shape):
    """AdaLN: gate, weight and bias of their own for each sample."""
    draw = torch.Generator().manual_seed(0)
    x, y = (torch.randn(2, 3, 6, generator=draw) for _ in range(2))
    gate, weight, bias = (torch.randn(shape, generator=draw) for _ in range(3))
    found = residual_write(
        x, y, gain=gate, weight=weight, bias=bias, weight_offset=1.0, norm="layer"
    )
    torch.testing.assert_close(found.stream, x + gate * y)
    wanted = functional.layer_norm(x + gate * y, (6,), eps=1e-6) * (1 + weight) + bias
    torch.testing.assert_close(found.normed, wanted)


def test_rules_of_the_papers():
    """Plain, ReZero, LayerScale and DeepNorm as their papers write them."""
    draw = torch.Generator().manual_seed(0)
    x, y = (torch.randn(4, 8, generator=draw) for _ in range(2))
    gamma, alpha = torch.rand(8, generator=draw), torch.tensor([0.25])
    weight, bias = torch.rand(8, generator=draw), torch.rand(8, generator=draw)
    assert torch.equal(residual_write(x, y).stream, x + y)
    assert torch.equal(residual_write(x, y, gain=alpha).stream, x + 0.25 * y)
    assert torch.equal(residual_write(x, y, layer_scale=gamma).stream, x + gamma * y)
    deep = residual_write(x, y, skip_scale=2.5, norm="layer", weight=weight, bias=bias, eps=1e-5)
    torch.testing.assert_close(
        deep.normed, functional.layer_norm(2.5 * x + y, (8,), weight, bias, 1e-5)
    )


def test_rounding_of_llama_and_gemma():
    """Where the normed stream is rounded, in bfloat16, bit for bit."""
    draw = torch.Generator().manual_seed(0)
    x, weight = torch.randn(64, 32, generator=draw), torch.rand(32, generator=draw).bfloat16()
    y = torch.zeros(64, 32, dtype=torch.bfloat16)
    xhat = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    llama = residual_write(x, y, norm="rms", weight=weight, cast="hf").normed
    gemma = residual_write(x, y, norm="rms", weight=weight, weight_offset=1.0).normed
    for found, wanted in (
        (llama, weight * xhat.bfloat16()),
        (gemma, (xhat * (1.0 + weight.float())).bfloat16()),
    ):
        off = (found != wanted).float().mean()
        assert off < 0.01  # xhat differs in its last float32 bit here and there
        torch.testing.assert_close(found, wanted, rtol=2**-7, atol=0)


def test_bfloat16_stream_is_normed_as_stored():
    operands, options = Case(torch.bfloat16, torch.float32, layer_scale=False, gain=1.0).build(
        "cpu"
    )
    found = reference_write(operands, options)
    stored = found.stream.float()
    wanted = functional.rms_norm(stored, (97,), operands.weight, 1e-6)
    torch.testing.assert_close(found.normed, wanted)
    assert torch.equal(found.stream, (operands.stream.float() + operands.branch).bfloat16())


def test_gradient_is_not_rounded_with_the_stream():
    """A bfloat16 stream does not cost the norm's gradient its float32 bits."""
    operands, options = Case(torch.bfloat16, torch.float32, stats=False).build("cpu")
    branch = operands.branch.requires_grad_()
    found = run(operands, options, "torch")
    (grad,) = torch.autograd.grad(found.normed.sum(), [branch])
    assert not torch.equal(grad, grad.bfloat16().float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_statistics_against_numpy(dtype):
    case = Case(stream=dtype, branch=dtype, rows=(2, 3), width=50)
    operands, options = case.build("cpu")
    found = run(operands, options, "torch")
    x, y, new = (t.double().numpy() for t in (operands.stream, operands.branch, found.stream))
    gain, scale = (
        torch.as_tensor(f).double().numpy() for f in (operands.gain, operands.layer_scale)
    )
    u = gain * scale * y
    wanted = {
        "write_norm": np.sqrt((u * u).sum(-1)),
        "stream_norm": np.sqrt((x * x).sum(-1)),
        "new_norm": np.sqrt((new * new).sum(-1)),
        "stream_dot_write": (x * u).sum(-1),
        "max_abs": np.abs(new).max(-1),
        "max_channel": np.abs(new).argmax(-1),
        "n_nonfinite": np.zeros((2, 3)),
        "branch_norm": np.sqrt((y * y).sum(-1)),
    }
    assert tuple(wanted) == STATISTICS
    for i, (name, value) in enumerate(wanted.items()):
        np.testing.assert_allclose(
            found.stats[..., i].numpy(), value, rtol=1e-5, atol=1e-5, err_msg=name
        )


def test_statistics_with_and_without_numpy_agree():
    """The host's short cut and the device's form, on rows with all that can go wrong."""
    draw = torch.Generator().manual_seed(0)
    new = torch.randn(40, 9, generator=draw).round()
    new[3, 4], new[5, 2], new[7], new[9, 8] = torch.nan, torch.inf, torch.nan, -torch.inf
    new[11] = 1e30
    new = new.reshape(4, 10, 9)
    norm = torch.linalg.vector_norm(new, dim=-1)
    arguments = (new.nan_to_num(0, 0, 0), new.nan_to_num(0, 0, 0), new, norm)
    host, device = reference._rest_on_host(*arguments), reference._rest(*arguments)
    for ours, theirs in zip(host, device, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert device[3].sum() == 1 + 1 + 9 + 1


@pytest.mark.parametrize("case", [Case(), Case(torch.bfloat16, norm=None), Case(stats=False)])
def test_blocks_of_rows_give_the_same_bits(case, monkeypatch):
    """On a CPU many rows are worked on a block at a time."""
    case = replace(case, rows=(3, 11), width=16)
    operands, options = case.build("cpu")
    whole = run(operands, options, "torch")
    monkeypatch.setattr(reference, "_BLOCK_ELEMENTS", 16 * 5)
    cut = run(operands, options, "torch")
    for ours, theirs in zip(cut, whole, strict=True):
        assert (ours is None) == (theirs is None)
        assert ours is None or torch.equal(ours, theirs)


def test_statistics_are_no_part_of_the_graph():
    operands, options = Case().build("cpu")
    found = run(
        WriteOperands(**{**vars(operands), "stream": operands.stream.requires_grad_()}), options
    )
    assert found.stream.requires_grad
    assert not found.stats.requires_grad


def test_compiled_reference_equals_eager():
    operands, options = Case(torch.float32, torch.bfloat16, norm="layer", bias=True).build("cpu")
    eager, compiled = run(operands, options, "torch"), run(operands, options, "compile")
    for ours, theirs in zip(compiled, eager, strict=True):
        torch.testing.assert_close(ours, theirs)
