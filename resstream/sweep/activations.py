"""Which activations does transformers write out in many passes, and which one kernel gives them?

GPT-2's `NewGELUActivation` is eight elementwise operations over the widest tensor of the block,
a quarter of a sweep's time.  While a sweep runs, base run and variants alike compute it by torch's
own kernel; the numbers agree to rounding, not to the bit.

References:
    Hendrycks and Gimpel (2016), "Gaussian Error Linear Units", arXiv:1606.08415.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

Activation = Callable[[Tensor], Tensor]
_TANH_GELUS = {
    # All of them are ``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))``.
    "transformers.activations.NewGELUActivation",
    "transformers.activations.FastGELUActivation",
    "transformers.activations.AccurateGELUActivation",
    "transformers.models.bloom.modeling_bloom.BloomGelu",
}

_DTYPES = (torch.float32,)


def slow_activations(module: nn.Module) -> list[nn.Module]:
    """The activations of `module` that torch has one kernel for; exactly these classes."""
    return [part for part in module.modules() if _class_name(part) in _TANH_GELUS]


@contextmanager
def fast_activations(module: nn.Module) -> Iterator[None]:
    """Compute them by one kernel each while the context is open.

    Only in float32 and without gradients: in narrower types the module's own roundings are part
    of what the model computes, in float64 the constants as Bloom rounds them are.
    A module whose `forward` somebody else has put in its place is left alone.

    Args:
        module: The model; hooks on the activations go on working.
    """
    swapped = [part for part in slow_activations(module) if "forward" not in vars(part)]
    try:
        for part in swapped:
            vars(part)["forward"] = _by_kernel(part.forward)
        yield
    finally:
        for part in swapped:
            vars(part).pop("forward", None)


def fast_names(module: nn.Module, dtype: torch.dtype) -> tuple[str, ...]:
    """Classes of the activations that a sweep in `dtype` computes by one kernel each."""
    if dtype not in _DTYPES:
        return ()
    return tuple(sorted({type(part).__name__ for part in slow_activations(module)}))


def _by_kernel(own: Activation) -> Activation:
    kernel = partial(nn.functional.gelu, approximate="tanh")

    def forward(value: Tensor) -> Tensor:
        if value.dtype not in _DTYPES or torch.is_grad_enabled():
            return own(value)
        return kernel(value)

    return forward


def _class_name(module: nn.Module) -> str:
    kind = type(module)
    return f"{kind.__module__}.{kind.__qualname__}"
