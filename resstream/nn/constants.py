"""Which constants do the papers give for a depth?  Pure functions of numbers of layers.

N counts encoder blocks, M decoder blocks.
"""

import math
from typing import Literal, assert_never, get_args

from resstream.errors import ConfigError
from resstream.nn.variants import check_choice, check_whole

Stack = Literal["encoder_only", "decoder_only", "encoder", "decoder"]
"""A stack by itself, or one of the two of an encoder-decoder model."""


def deepnorm_constants(
    stack: Stack, *, n_encoder: int | None = None, n_decoder: int | None = None
) -> tuple[float, float]:
    """DeepNorm's alpha (weight of the skip) and beta (gain of the initialisation).

    ::

        encoder_only   (2 N)^(1/4)              (8 N)^(-1/4)
        decoder_only   (2 M)^(1/4)              (8 M)^(-1/4)
        encoder        0.81 (N^4 M)^(1/16)      0.87 (N^4 M)^(-1/16)
        decoder        (3 M)^(1/4)              (12 M)^(-1/4)

    Raises:
        ConfigError: The stack is unknown, or a depth that it needs is missing.

    References:
        Wang et al. (2022), "DeepNet: Scaling Transformers to 1,000 Layers", figure 2.  torchscale
        divides by ``(N^4 M)^(1/16) / 1.15``, which is a gain of 1.15 where the paper has 0.87.
    """
    n, m = _depths("deepnorm", stack, n_encoder, n_decoder)
    match stack:
        case "encoder_only":
            return (2 * n) ** 0.25, (8 * n) ** -0.25
        case "decoder_only":
            return (2 * m) ** 0.25, (8 * m) ** -0.25
        case "encoder":
            return 0.81 * (n**4 * m) ** (1 / 16), 0.87 * (n**4 * m) ** (-1 / 16)
        case "decoder":
            return (3 * m) ** 0.25, (12 * m) ** -0.25
        case _:
            assert_never(stack)


def sub_ln_gain(
    stack: Stack, *, n_encoder: int | None = None, n_decoder: int | None = None
) -> float:
    """Magneto's gamma, the gain of value, output and MLP matrices under Sub-LN.

    ``sqrt(ln 2N)`` for one stack, ``sqrt(ln 3M ln 2N / 3)`` for the encoder and ``sqrt(ln 3M)`` for
    the decoder of an encoder-decoder model.

    Raises:
        ConfigError: The stack is unknown, or a depth that it needs is missing.

    References:
        Wang et al. (2022), "Foundation Transformers" (Magneto), figure 2.
    """
    n, m = _depths("sub_ln", stack, n_encoder, n_decoder)
    match stack:
        case "encoder_only":
            return math.sqrt(math.log(2 * n))
        case "decoder_only":
            return math.sqrt(math.log(2 * m))
        case "encoder":
            return math.sqrt(math.log(3 * m) * math.log(2 * n) / 3)
        case "decoder":
            return math.sqrt(math.log(3 * m))
        case _:
            assert_never(stack)


def tfixup_gain(stack: Literal["encoder", "decoder"], n_layers: int) -> float:
    """T-Fixup's gain of value, output and MLP matrices: ``0.67 N^(-1/4)`` or ``(9 N)^(-1/4)``.

    The second is also the gain of the embeddings, in either stack.

    References:
        Huang et al. (2020), "Improving Transformer Optimization Through Better Initialization",
        section 3.
    """
    return 0.67 * n_layers**-0.25 if stack == "encoder" else (9 * n_layers) ** -0.25


def fixup_gain(n_branches: int, n_matrices: int) -> float:
    """Fixup's gain ``L^(-1/(2m-2))`` of all but the last of m matrices in each of L branches.

    References:
        Zhang et al. (2019), "Fixup Initialization: Residual Learning Without Normalization".
        Mind copies that lost the minus sign.
    """
    return n_branches ** (-1 / (2 * n_matrices - 2))


def layer_scale_start(n_layers: int) -> float:
    """CaiT's start of LayerScale: 0.1 up to depth 18, 1e-5 up to 24, 1e-6 deeper.

    References:
        Touvron et al. (2021), "Going deeper with Image Transformers", section 3.1.
    """
    return 0.1 if n_layers <= 18 else 1e-5 if n_layers <= 24 else 1e-6


def _depths(what: str, stack: str, n_encoder: int | None, n_decoder: int | None) -> tuple[int, int]:
    """The two depths; those that the stack does not need are 0."""
    check_choice("stack", stack, get_args(Stack))
    needed = {
        "encoder_only": ("n_encoder",),
        "decoder_only": ("n_decoder",),
        "encoder": ("n_encoder", "n_decoder"),
        "decoder": ("n_decoder",),
    }[stack]
    given = {"n_encoder": n_encoder, "n_decoder": n_decoder}
    for key in needed:
        if given[key] is None:
            raise ConfigError(f"{key} must be given for {what} constants of {stack!r}, got None")
        check_whole(key, given[key], at_least=1)
    return n_encoder or 0, n_decoder or 0
