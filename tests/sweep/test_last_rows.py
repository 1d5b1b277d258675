"""The last block's MLP runs on the rows that are read, and gives there what it gives on all."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from resstream.sweep.cells import run_cells, run_pairs
from resstream.sweep.last_rows import only_rows, row_module
from resstream.sweep.patches import Cell
from resstream.sweep.prefix import prove_prefix
from tests.sweep.families import FAMILIES, LENGTH, make, tokens

PACKED = [name for name, (_, proved) in FAMILIES.items() if proved]
ROWS = torch.tensor([1, 4])


class Scaled(nn.Module):
    def forward(self, value: Tensor, factor: Tensor | float = 2.0) -> tuple[Tensor, str]:
        return value * factor, "kept"


def test_chosen_rows_are_exact_and_the_others_zero() -> None:
    module, value = Scaled(), torch.randn(1, 6, 3)
    with only_rows(module, ROWS, 6):
        output, rest = module(value)
    assert rest == "kept"
    assert torch.equal(output[:, ROWS], 2 * value[:, ROWS])
    assert not output[:, [0, 2, 3, 5]].any()
    assert torch.equal(module(value)[0], 2 * value)


@pytest.mark.parametrize(
    ("value", "options"),
    [
        (torch.ones(2, 6, 3), {}),  # two sequences
        (torch.ones(1, 5, 3), {}),  # other rows than those that are known
        (torch.ones(6, 3), {}),
        (torch.ones(1, 6, 3), {"factor": torch.full((6, 1), 2.0)}),  # belongs to the rows, perhaps
    ],
)
def test_other_calls_are_left_alone(value: Tensor, options: dict[str, Any]) -> None:
    module = Scaled()
    with only_rows(module, ROWS, 6):
        assert torch.equal(module(value, **options)[0], 2 * value)


def test_it_is_put_back_after_an_error() -> None:
    module, value = Scaled(), torch.ones(1, 6, 3)
    with pytest.raises(KeyboardInterrupt), only_rows(module, ROWS, 6):
        raise KeyboardInterrupt
    assert torch.equal(module(value)[0], 2 * value)


def test_only_the_last_word_of_a_block_is_cut() -> None:
    named = {name: row_module(make(name).spec.blocks[-1]) for name in ("llama", "gptj", "mamba")}
    assert named == {"llama": "model.layers.2.mlp", "gptj": "transformer.h.2.mlp", "mamba": None}
    assert row_module(make("gemma3_text").spec.blocks[-1]) == "model.layers.2.mlp"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", PACKED)
def test_the_last_mlp_sees_one_row_a_variant(family: str) -> None:
    """That the numbers stay exact is shown for every cell in test_suffixes."""
    model = make(family)
    proof = prove_prefix(model)
    run = run_pairs(model, tokens(1), tokens(2), site="resid_pre", layers=(0, 2), suffixes=True)
    cells = [Cell(0, layer, position) for layer in (0, 2) for position in range(LENGTH)]
    path = row_module(model.spec.blocks[-1])
    assert path is not None
    seen: list[int] = []
    module = model.module.get_submodule(path)
    handle = module.register_forward_hook(
        lambda module, args, output: seen.append(args[0].shape[-2])
    )
    run_cells(model, run, cells, proof.axes)
    handle.remove()
    rows = 2 * sum(range(1, LENGTH + 1))
    assert seen == [rows if family == "opt" else len(cells)]  # OPT's MLP is no module of its own
