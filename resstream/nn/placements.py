"""Where does the norm stand in a block?  The closed set of placements, and two that are refused.

With x the stream, F a sublayer and N the norm:

    ==========  ==========================================  =====================================
    pre         ``x + F(N(x))``                             Xiong et al. (2020)
    post        ``N(x + F(x))``                             Vaswani et al. (2017)
    sandwich    ``x + N(F(N(x)))``                          CogView (Ding et al. 2021); with a final
                                                            norm Peri-LN (Kim et al. 2025)
    after       ``x + N(F(x))``                             OLMo 2 (2024)
    sub         ``x + W N(inner(N(x)))``, N before W_O      Sub-LN, Magneto (Wang et al. 2022)
                and before the MLP's last matrix
    normformer  attention ``x + N(heads(N(x)))`` with one   NormFormer (Shleifer et al. 2021)
                gain per head, MLP ``x + W N(act(W N(x)))``
    none        ``x + F(x)``                                Fixup, ReZero
    ==========  ==========================================  =====================================
"""

from typing import Literal, get_args

from resstream.errors import ConfigError
from resstream.nn.variants import check_choice

Placement = Literal["pre", "post", "sandwich", "after", "sub", "normformer", "none"]
"""Where the norm stands; see the module's docstring."""
PLACEMENTS: tuple[Placement, ...] = get_args(Placement)

_REFUSED = {
    "residual": "ResiDual (Xie et al. 2023) carries a Post-LN and a Pre-LN stream and sums their "
    "ends: there is no one stream whose writes could be followed",
    "residual_dual": "ResiDual (Xie et al. 2023) carries two streams",
    "peri": "Peri-LN is 'sandwich', which has a final norm here; 'embed_norm' adds its other norm",
}


def check_placement(value: object, allowed: tuple[Placement, ...], rule: str) -> None:
    """Refuse what is no placement, or none that `rule` was made for.

    Raises:
        ConfigError: Names the key, the value and what is allowed, and why where that is known.
    """
    if isinstance(value, str) and value in _REFUSED:
        raise ConfigError(
            f"placement must be one of {', '.join(PLACEMENTS)}, got {value!r}: {_REFUSED[value]}"
        )
    check_choice("placement", value, PLACEMENTS)
    if value not in allowed:
        raise ConfigError(
            f"placement must be one of {', '.join(allowed)} for the rule {rule!r}, got {value!r}"
        )


def norms_read(placement: Placement) -> bool:
    """True if a sublayer reads the normed stream."""
    return placement in ("pre", "sandwich", "sub", "normformer")


def norms_stream(placement: Placement) -> bool:
    """True if the stream itself is normed after each write."""
    return placement == "post"


def norms_branch(placement: Placement, name: str) -> bool:
    """True if the output of the sublayer `name` is normed before it is written."""
    return placement in ("sandwich", "after") or (placement == "normformer" and name == "attn")


def norms_inside(placement: Placement, name: str) -> bool:
    """True if the sublayer `name` norms what its last matrix reads."""
    return placement == "sub" or (placement == "normformer" and name != "attn")
