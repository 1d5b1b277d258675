"""How large must Admin's omegas be?  Measured: one run of the model with every omega at one."""

import torch
from torch import Tensor, nn

from resstream.nn.scales import SkipChannelScale
from resstream.nn.writing import WritingBlock


@torch.no_grad()
def profile_admin_(model: nn.Module, *inputs: Tensor) -> tuple[float, ...]:
    """Set ``omega_i = sqrt(sum_{j < i} Var F_j)`` in place, F_0 being the embedding.

    The variances are over all elements of the branches, in one run on `inputs` with every omega
    at one.

    Args:
        model: A model with the rule `Admin`.
        inputs: What it is called with: a batch that is like the training data.

    Returns:
        The omegas in order of the writes.

    Raises:
        ValueError: The model has no omega.

    References:
        Liu et al. (2020), "Understanding the Difficulty of Training Transformers", section 4.3.
    """
    scales = [module for module in model.modules() if isinstance(module, SkipChannelScale)]
    if not scales:
        raise ValueError(
            f"{type(model).__name__} must have the rule 'admin' to be profiled, and has no omega"
        )
    for scale in scales:
        scale.reset_parameters()
    variances = _branch_variances(model, inputs)
    omegas: list[float] = []
    for index, scale in enumerate(scales):
        omegas.append(sum(variances[: index + 1]) ** 0.5)
        nn.init.constant_(scale.omega, omegas[-1])
    return tuple(omegas)


def _branch_variances(model: nn.Module, inputs: tuple[Tensor, ...]) -> list[float]:
    """Variance of the embedding, then of every branch in order."""
    variances: list[float] = []

    def note(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        del module, args
        variances.append(float(output.var(correction=0)))

    blocks = [module for module in model.modules() if isinstance(module, WritingBlock)]
    noted: list[nn.Module] = [blocks[0].hook_resid_pre]
    noted += [
        block.get_submodule(f"hook_{name}_branch") for block in blocks for name in block.names
    ]
    handles = [module.register_forward_hook(note) for module in noted]
    try:
        model(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    return variances
