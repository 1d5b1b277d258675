"""Are the kernels' gradients those of the definition?"""

from dataclasses import replace

import pytest
import torch

from resstream.kernels import launch, launch_table
from resstream.kernels.dispatch import residual_write
from resstream.kernels.reference import WriteOperands
from tests.kernels.gradients import check, check_gradients, gradients, incoming, leaves
from tests.kernels.oracle import LAYOUTS, NAMES, Case, run


@pytest.mark.parametrize("rows", [(), (0,), (1,), (64,), (65,), (200,), (2, 1, 3)], ids=str)
def test_rows_and_ranks(rows, device):
    check(Case(rows=rows, width=7, norm="layer", bias=True, skip_scale="tensor"), device)


@pytest.mark.parametrize("norm", ["rms", "layer"])
@pytest.mark.parametrize("use", [(True, False), (False, True)], ids=["only stream", "only normed"])
def test_one_sided(use, norm, device):
    check(Case(norm=norm, bias=True, skip_scale="tensor"), device, use)


def test_no_gradient_at_all(device):
    """Only the statistics were used: no gradient flows, and none is invented."""
    operands = leaves(Case().build(device)[0])
    found = run(operands, Case().build(device)[1])
    assert not found.stats.requires_grad


def test_zero_gain_learns(device):
    """ReZero begins at gain 0: the gain's gradient exists, those of branch and gamma are 0."""
    plain, options = Case().build(device)
    operands = leaves(replace(plain, gain=torch.zeros(1, device=device)))
    found = run(operands, options)
    back = gradients(operands, found, incoming(found))
    assert back["gain"].abs().item() > 0.1
    assert torch.count_nonzero(back["branch"]) == 0
    assert torch.count_nonzero(back["layer_scale"]) == 0
    wanted = replace(plain, gain=torch.zeros(1, device=device))
    check_gradients(wanted, options, found.stream.detach(), incoming(found), back)


def test_zero_rows(device):
    """A row of zeros has no direction: gradients stay finite, and are those of the reference."""
    plain, options = Case(gain=1.0, layer_scale=False).build(device)
    plain = replace(plain, stream=plain.stream * 0, branch=plain.branch * 0)
    operands = leaves(plain)
    found = run(operands, options)
    back = gradients(operands, found, incoming(found))
    check_gradients(plain, options, found.stream.detach(), incoming(found), back)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_operands_and_gradients(layout, device):
    plain, options = Case(width=24, rows=(6,), skip_scale="tensor").build(device)
    lay = LAYOUTS[layout]
    plain = replace(plain, stream=lay(plain.stream), branch=lay(plain.branch))
    operands = WriteOperands(
        **{
            n: v.requires_grad_() if isinstance(v, torch.Tensor) else v
            for n, v in vars(plain).items()
        }
    )
    found = run(operands, options)
    grads = tuple(lay(g) for g in incoming(found))
    back = gradients(operands, found, (grads[0], grads[1]))
    check_gradients(plain, options, found.stream.detach(), (grads[0], grads[1]), back)


def test_gradient_of_a_sum(device):
    """``.sum().backward()`` sends one expanded element, of strides 0."""
    plain, options = Case(norm=None).build(device)
    operands = leaves(plain)
    found = run(operands, options)
    found.stream.sum().backward()
    assert plain.layer_scale is not None
    wanted = (plain.gain * plain.layer_scale).expand_as(plain.branch)
    torch.testing.assert_close(operands.branch.grad, wanted)


@pytest.mark.parametrize("name", NAMES)
def test_only_what_is_wanted(name, device):
    """Each operand alone: the same bits as when all gradients are wanted."""
    plain, options = Case(norm="layer", bias=True, skip_scale="tensor").build(device)
    operands = leaves(plain)
    every = gradients(operands, found := run(operands, options), incoming(found))
    alone = leaves(plain, (name,))
    back = gradients(alone, found := run(alone, options), incoming(found))
    assert list(back) == [name]
    assert torch.equal(back[name], every[name])


@pytest.mark.parametrize("wanted", [("stream",), ("branch",), ("stream", "branch")], ids=str)
def test_plain_writes_share_a_gradient(wanted, device):
    case = Case(gain=1.0, layer_scale=False, norm="rms")
    plain, options = case.build(device)
    operands = leaves(plain, wanted)
    found = run(operands, options)
    back = gradients(operands, found, incoming(found))
    check_gradients(plain, options, found.stream.detach(), incoming(found), back)


def test_one_tensor_as_stream_and_branch(device):
    values = torch.randn(4, 9, device=device, requires_grad=True)
    found = residual_write(values, values, gain=3.0, norm=None, impl="triton")
    found.stream.sum().backward()
    assert torch.equal(values.grad, torch.full_like(values, 4.0))


def test_bits_repeat(device):
    case = Case(torch.bfloat16, torch.bfloat16, "layer", rows=(150,), bias=True)
    results = []
    for _ in range(2):
        plain, options = case.build(device)
        operands = leaves(plain)
        found = run(operands, options)
        results.append(gradients(operands, found, incoming(found)))
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


TWO_KERNELS = [
    Case(norm="layer", bias=True, skip_scale="tensor"),
    Case(torch.bfloat16, torch.float16, "rms", gain=0.0, skip_scale=0.9, cast="hf", offset=1.0),
    Case(torch.float32, torch.bfloat16, "rms", gain=1.0, layer_scale=False),
    Case(torch.float32, torch.bfloat16, None),
]


@pytest.fixture
def two_kernels(monkeypatch):
    """Let every width take the two kernels that wide rows take."""
    monkeypatch.setattr(launch_table, "BACKWARD", ())


@pytest.mark.parametrize("case", TWO_KERNELS, ids=str)
def test_two_kernels(case, device, two_kernels):
    check(replace(case, width=300, rows=(70,)), device)


@pytest.mark.parametrize("use", [(True, False), (False, True)], ids=["only stream", "only normed"])
def test_two_kernels_one_sided(use, device, two_kernels):
    check(Case(norm="layer", bias=True, skip_scale="tensor"), device, use)


def test_width_8192(device):
    assert launch_table.choose(launch_table.BACKWARD, 8192) is None
    check(Case(torch.bfloat16, torch.bfloat16, width=8192, rows=(2,), gain=1.0), device)


def test_second_derivative_is_refused(device):
    operands = leaves(Case().build(device)[0])
    found = run(operands, Case().build(device)[1])
    with pytest.raises(RuntimeError, match=r"differentiated once.*impl='torch'"):
        torch.autograd.grad(found.normed.sum(), [operands.stream], create_graph=True)


def test_edited_stream_is_noticed(device):
    """The stored stream is saved for the backward pass; torch refuses one that was changed."""
    operands, options = leaves(Case().build(device)[0]), Case().build(device)[1]
    found = run(operands, options)
    with torch.no_grad():
        found.stream.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        found.normed.sum().backward()


def test_branch_is_not_kept_without_need(device):
    """Only the gradients of layer_scale and gain read the branch again."""
    for case, kept in ((Case(), True), (Case(gain=0.5, layer_scale=False), False)):
        operands = leaves(case.build(device)[0])
        found = run(operands, case.build(device)[1])
        saved = [t for t in found.stream.grad_fn.saved_tensors if t is not None]
        pointers = {t.data_ptr() for t in saved}
        assert (operands.branch.data_ptr() in pointers) == kept
        assert operands.stream.data_ptr() not in pointers


def test_partials_follow_the_device(device):
    """Column sums are made by several programs, also in the interpreter."""
    launched = launch._choice(launch_table.BACKWARD, 64, torch.device(device))
    assert launched is not None
    assert launch._programs(launched, 10_000, torch.device(device)) > 1
