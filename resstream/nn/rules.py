r"""How is a branch written into the stream?  The closed set of residual rules.

A rule is a frozen dataclass of its own parameters.  It says where the norm stands, what multiplies
branch, read and stream (`write_scale`), and by how much the initialisation of a matrix is scaled
(`init_gain`).  With L blocks, n = 2L writes, x the stream, F a sublayer, N the norm:

    ==================  ==========================================  ================================
    kind                write                                       norm
    ==================  ==========================================  ================================
    plain               x + F(N(x))                                 before the branch
    layer_scale         x + gamma * F(N(x))                         before the branch
    rezero              x + alpha_l F(x)                            none
    rezero_norm         x + alpha_i F(N(x))                         before the branch
    skipinit            x + alpha_i F(x)                            none
    fixup               x + s_i F(x), scalar biases in F            none
    tfixup              x + F(x), small matrices                    none
    layer_norm_scaling  x + F(N(x) / sqrt(l))                       before the branch
    depth_mup           x + a / sqrt(L) F(N(x))                     before the branch
    completep           x + (L / base)^(-alpha) F(N(x))             before the branch
    sub_ln              x + W N(inner(N(x))), larger matrices       before both matrices
    adaln_zero          x + g F(N(x) (1 + s) + b), of a condition   before the branch
    residual_attention  N(x + F(x)), scores added over depth        after the addition
    none                F(N(x))                                     before the branch
    deepnorm            N(alpha x + F(x)) or N(x + F(x) / alpha)    after the addition
    admin               N(omega_i * x + F(x))                       after the addition
    weighted            skip x + branch F(N(x))                     before the branch
    highway             T * F(x) + (1 - T) * x                      none
    gate                g F(N(x)) + (1 - g) x                       before the branch
    adapter_skip        A(x) + F(N(x))                              before the branch
    ==================  ==========================================  ================================

To add a rule: write its class in `additive_rules` or `skip_rules`, with formula, constants and
source, and name it in `RULES`.
"""

from resstream.errors import ConfigError
from resstream.nn.additive_rules import (
    PLAIN,
    AdaLNZero,
    CompleteP,
    DepthMuP,
    Fixup,
    LayerNormScaling,
    LayerScale,
    Plain,
    ResidualAttention,
    ReZero,
    ReZeroNorm,
    SkipInit,
    SubLN,
    TFixup,
)
from resstream.nn.rule import ResidualRule
from resstream.nn.skip_rules import (
    AdapterSkip,
    Admin,
    DeepNorm,
    DynamicGate,
    Highway,
    NoSkip,
    Weighted,
)
from resstream.nn.variants import parse_variant

__all__ = [
    "PLAIN",
    "RULES",
    "AdaLNZero",
    "AdapterSkip",
    "Admin",
    "CompleteP",
    "DeepNorm",
    "DepthMuP",
    "DynamicGate",
    "Fixup",
    "Highway",
    "LayerNormScaling",
    "LayerScale",
    "NoSkip",
    "Plain",
    "ReZero",
    "ReZeroNorm",
    "ResidualAttention",
    "ResidualRule",
    "SkipInit",
    "SubLN",
    "TFixup",
    "Weighted",
    "parse_rule",
]

RULES: tuple[type[ResidualRule], ...] = (
    Plain,
    LayerScale,
    ReZero,
    ReZeroNorm,
    SkipInit,
    Fixup,
    TFixup,
    LayerNormScaling,
    DepthMuP,
    CompleteP,
    SubLN,
    AdaLNZero,
    ResidualAttention,
    NoSkip,
    DeepNorm,
    Admin,
    Weighted,
    Highway,
    DynamicGate,
    AdapterSkip,
)
"""Every residual rule; a config names one by its `kind`."""

_MULTI_STREAM = {
    "hyper_connections": "n streams mixed by a matrix (Zhu et al. 2024)",
    "dense": "concatenation of all earlier outputs (Huang et al. 2016)",
    "attention_over_depth": "a softmax over all earlier outputs",
}


def parse_rule(value: object) -> ResidualRule:
    """The rule that a kind, a mapping or a rule describes.

    Raises:
        ConfigError: The kind is unknown, or has more than one stream; or a value is not allowed.
    """
    kind = value.get("kind") if isinstance(value, dict) else value
    if isinstance(kind, str) and kind in _MULTI_STREAM:
        known = ", ".join(sorted(rule.kind for rule in RULES))
        raise ConfigError(
            f"rule.kind must be one of {known}, got {kind!r}: that is {_MULTI_STREAM[kind]}, and "
            "there is no one stream whose writes could be followed"
        )
    return parse_variant("rule", value, RULES)
