"""Do forward and backward meet the definition in all combinations and at all widths?"""

import itertools
import random

import pytest
import torch

from tests.kernels.gradients import check
from tests.kernels.oracle import Case

FACTORS = {
    "stream": (torch.float32, torch.bfloat16),
    "branch": (torch.float32, torch.bfloat16, torch.float16),
    "norm": ("rms", "layer", None),
    "layer_scale": (False, True),
    "gain": (1.0, 0.3, 0.0, "tensor"),
    "skip_scale": (1.0, 0.9, "tensor"),
    "stats": (False, True),
    "cast": ("end", "hf"),
    "bias": (False, True),
    "offset": (0.0, 1.0),
}


def sample(n: int) -> list[Case]:
    """So many of the 6,912 combinations; `test_sample_covers_pairs` says what they cover."""
    every = list(itertools.product(*FACTORS.values()))
    chosen = random.Random(0).sample(every, n)
    return [
        Case(**dict(zip(FACTORS, values, strict=True)), seed=i) for i, values in enumerate(chosen)
    ]


CASES = sample(72)
"""As few as cover every pair of values, so that the folder stays within minutes."""


def test_sample_covers_pairs():
    for (a, values_a), (b, values_b) in itertools.combinations(FACTORS.items(), 2):
        seen = {(getattr(case, a), getattr(case, b)) for case in CASES}
        assert seen == set(itertools.product(values_a, values_b)), (a, b)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_combinations(case, device):
    check(case, device)


@pytest.mark.parametrize("norm", ["rms", "layer"])
@pytest.mark.parametrize("width", [1, 2, 7, 64, 97, 576, 577, 768, 1024, 1600])
def test_widths(width, norm, device):
    check(Case(torch.float32, torch.bfloat16, norm, width=width, rows=(3,), bias=True), device)
