"""Which learning rate does each parameter get?  Groups for an optimizer, as the rule asks."""

from typing import Any

from torch import nn

from resstream.nn.matrices import Drawing
from resstream.nn.norms import HeadScale, ScalarBias, StreamNorm
from resstream.nn.rule import Part
from resstream.nn.scales import WriteScale
from resstream.nn.writing import WritingBlock


def part_of(module: nn.Module, name: str) -> Part:
    """The group to which parameter `name` of a `module` in a block belongs, gates apart."""
    if isinstance(module, StreamNorm | HeadScale):
        return "norm"
    return "bias" if isinstance(module, ScalarBias) or name == "bias" else "matrix"


def _within(model: nn.Module, kind: type[nn.Module]) -> set[nn.Module]:
    """All modules of that kind, and those inside them."""
    return {
        part for whole in model.modules() if isinstance(whole, kind) for part in whole.modules()
    }


def parameter_groups(
    model: nn.Module, config: Drawing, learning_rate: float, *, weight_decay: float = 0.0
) -> list[dict[str, Any]]:
    """Optimizer groups, one for each pair of learning rate and weight decay.

    Only matrices and embeddings decay.  The learning rate of a group is `learning_rate` times the
    rule's `rate_gain`: a tenth for Fixup's biases and multipliers, a power of the depth for
    Depth-muP and CompleteP.  What lies outside the blocks counts as embedding.

    Args:
        model: A native model, or what wraps one.
        config: Its native config.
        learning_rate: Of everything that the rule does not single out.
        weight_decay: Of matrices and embeddings.

    Returns:
        Dictionaries with ``params``, ``lr`` and ``weight_decay``.
    """
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    seen: set[nn.Parameter] = set()
    scales, blocks = _within(model, WriteScale), _within(model, WritingBlock)

    def part(module: nn.Module, name: str) -> Part:
        if module not in blocks:
            return "embed"
        return "scale" if module in scales else part_of(module, name)

    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter in seen or not parameter.requires_grad:
                continue
            seen.add(parameter)
            is_matrix = parameter.ndim > 1 and module not in scales
            decay = weight_decay if is_matrix else 0.0
            rate = learning_rate * config.rule.rate_gain(part(module, name), config.depth)
            groups.setdefault((rate, decay), []).append(parameter)
    return [
        {"params": parameters, "lr": rate, "weight_decay": decay}
        for (rate, decay), parameters in groups.items()
    ]
