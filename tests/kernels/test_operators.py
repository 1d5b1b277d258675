"""Do the operators for torch.compile keep their promises, and equal the eager kernels?"""

import pytest
import torch

from resstream.kernels import operators
from resstream.kernels.dispatch import residual_write
from resstream.kernels.reference import WriteOperands
from tests.kernels.gradients import gradients, incoming, leaves
from tests.kernels.oracle import NAMES, Case, run

CASES = [
    Case(norm="layer", bias=True, skip_scale="tensor"),
    Case(torch.bfloat16, torch.bfloat16, cast="hf", offset=1.0),
    Case(gain=1.0, layer_scale=False, stats=False),
    Case(norm=None, gain=0.0),
]


def flat(operands, options):
    """Arguments of the forward operator."""
    values = [getattr(operands, name) for name in NAMES]
    tensors = [v if isinstance(v, torch.Tensor) else None for v in values]
    return (*tensors, *operators._numbers(values), *operators._pack(options), True)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_opcheck(case, device):
    plain, options = case.build(device)
    torch.library.opcheck(torch.ops.resstream.write_forward, flat(leaves(plain), options))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_compiled_equals_eager(case, device):
    """The same bits, forward and backward, with no graph break."""
    torch._dynamo.reset()
    plain, options = case.build(device)

    def write(operands: WriteOperands):
        return residual_write(**vars(operands), **vars(options), impl="triton")

    results = []
    for function in (write, torch.compile(write, backend="aot_eager", fullgraph=True)):
        operands = leaves(plain)
        found = function(operands)
        results.append((found, gradients(operands, found, incoming(found))))
    (eager, eager_grads), (compiled, compiled_grads) = results
    for ours, theirs in zip(compiled, eager, strict=True):
        assert (ours is None) == (theirs is None)
        assert ours is None or torch.equal(ours, theirs)
    assert compiled_grads.keys() == eager_grads.keys()
    for name, gradient in eager_grads.items():
        assert gradient is None or torch.equal(compiled_grads[name], gradient), name


def test_one_graph_for_any_number_of_rows(device):
    torch._dynamo.reset()
    write = torch.compile(run, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows in (3, 5, 70):
        operands, options = Case(rows=(rows,)).build(device)
        ours, theirs = write(operands, options), run(operands, options)
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
