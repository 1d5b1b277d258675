"""Does the forward kernel return what the definition says?"""

import pytest
import torch

from resstream.kernels.dispatch import residual_write
from resstream.kernels.reference import STATISTICS, WriteOperands, WriteOptions
from tests.kernels.oracle import LAYOUTS, Case, check_forward, run


def check(case: Case, device: str):
    """Run one case, hold it against the oracle, return what was found."""
    operands, options = case.build(device)
    found = run(operands, options)
    check_forward(operands, options, found)
    return found


@pytest.mark.parametrize("stream", [torch.float32, torch.bfloat16])
def test_width_4096(stream, device):
    check(Case(stream, torch.bfloat16, width=4096, rows=(3,)), device)


@pytest.mark.parametrize("rows", [(), (0,), (1,), (3,), (64,), (65,), (2, 3), (2, 1, 3)], ids=str)
def test_rows_and_ranks(rows, device):
    found = check(Case(rows=rows, width=7, norm="layer", bias=True), device)
    assert found.stream.shape == found.normed.shape == (*rows, 7)
    assert found.stats.shape == (*rows, len(STATISTICS))


@pytest.mark.parametrize("branch", LAYOUTS)
@pytest.mark.parametrize("stream", LAYOUTS)
def test_layouts(stream, branch, device):
    operands, options = Case(width=24, rows=(6,)).build(device)
    assert operands.weight is not None
    assert operands.layer_scale is not None
    laid_out = WriteOperands(
        stream=LAYOUTS[stream](operands.stream),
        branch=LAYOUTS[branch](operands.branch),
        weight=torch.stack([operands.weight] * 2, -1)[:, 0],
        layer_scale=torch.cat([operands.layer_scale[:1], operands.layer_scale])[1:],
        gain=operands.gain,
    )
    check_forward(laid_out, options, run(laid_out, options))


def test_stream_and_branch_may_be_one_tensor(device):
    operands, options = Case(gain=1.0, layer_scale=False).build(device)
    shared = WriteOperands(**{**vars(operands), "branch": operands.stream})
    found = run(shared, options)
    assert torch.equal(found.stream, 2 * operands.stream)
    check_forward(shared, options, found)


def test_inputs_are_left_alone(device):
    operands, options = Case().build(device)
    before = {n: v.clone() for n, v in vars(operands).items() if isinstance(v, torch.Tensor)}
    run(operands, options)
    assert all(torch.equal(before[name], getattr(operands, name)) for name in before)


@pytest.mark.parametrize("case", [Case(norm="layer"), Case(stream=torch.bfloat16)], ids=str)
def test_bits_repeat(case, device):
    first, second = (run(*case.build(device)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_row_does_not_depend_on_the_others(device):
    operands, options = Case(rows=(67,), width=33).build(device)
    every = run(operands, options)
    for row in (0, 63, 64, 66):
        part = WriteOperands(
            **{
                **vars(operands),
                "stream": operands.stream[row : row + 1],
                "branch": operands.branch[row : row + 1],
            }
        )
        alone = run(part, options)
        assert all(torch.equal(a[row], b[0]) for a, b in zip(every, alone, strict=True))


def special(device, dtype, *rows):
    """A write of nothing onto rows of these values, with statistics."""
    stream = torch.tensor(rows, dtype=dtype, device=device)
    options = WriteOptions(norm="rms", out_dtype=torch.float32, stats=True)
    operands = WriteOperands(stream=stream, branch=torch.zeros_like(stream))
    return operands, run(operands, options), run(operands, options, impl="torch")


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("row", "top", "channel", "count"),
    [
        ((0.0, -0.0, 0.0), 0.0, 0, 0),
        ((1.0, -2.0, 2.0), 2.0, 1, 0),
        ((2.0, 2.0, -2.0), 2.0, 0, 0),
        ((1.0, NAN, 3.0), INF, 1, 1),
        ((1.0, -INF, NAN), INF, 1, 2),
        ((NAN, NAN, NAN), INF, 0, 3),
        ((5.0, 1.0, INF), INF, 2, 1),
    ],
    ids=str,
)
def test_extremes(dtype, row, top, channel, count, device):
    _, found, reference = special(device, dtype, row, (1.0, 2.0, 3.0))
    for stats in (found.stats, reference.stats):
        assert stats[0, 4:7].tolist() == [top, channel, count]
        assert stats[1, 4:7].tolist() == [3.0, 2, 0]
    assert torch.equal(found.stream[1], reference.stream[1])
    torch.testing.assert_close(found.normed, reference.normed, equal_nan=True)


def test_squares_that_overflow(device):
    """A row of 1e30: the norm is infinite with no channel at fault, and the normed row is 0."""
    _, found, reference = special(device, torch.float32, [1e30] * 5)
    for write in (found, reference):
        assert write.stats[0, 2] == INF
        assert write.stats[0, 6] == 0
        assert torch.equal(write.normed, torch.zeros_like(write.normed))


def test_largest_bfloat16(device):
    top = torch.finfo(torch.bfloat16).max
    operands, found, _ = special(device, torch.bfloat16, (top, -top, 1.0))
    assert torch.equal(found.stream, operands.stream)
    assert found.stats[0, 4] == top


def test_rounding_is_to_nearest_even(device):
    """Values that bfloat16 can't hold, among them ties, go where torch rounds them."""
    values = torch.randn(512, generator=torch.Generator().manual_seed(1))
    ties = torch.tensor([1 + 2.0**-8, 1 + 3 * 2.0**-8, -(1 + 2.0**-8), 1 + 2.0**-8 + 2.0**-20])
    branch = torch.cat([values, ties])[None].to(device)
    stream = torch.zeros_like(branch, dtype=torch.bfloat16)
    found = residual_write(stream, branch, norm=None, impl="triton")
    assert torch.equal(found.stream, branch.to(torch.bfloat16))


def test_zero_gain_is_the_identity(device):
    operands, options = Case(gain=0.0, stats=False).build(device)
    assert torch.equal(run(operands, options).stream, operands.stream)
