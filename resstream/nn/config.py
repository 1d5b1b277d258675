"""What is a native transformer made of?  One frozen config with sum types, checked when made."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, Self, get_args

from resstream.errors import ConfigError
from resstream.nn.initialisation import INITIALISATIONS, Depth, Initialisation
from resstream.nn.norm_kinds import RMS_NORM, LayerNorm, Norm, RmsNorm
from resstream.nn.placements import Placement, check_placement
from resstream.nn.plan import WritePlan
from resstream.nn.rules import PLAIN, ResidualRule, parse_rule
from resstream.nn.variants import (
    check_choice,
    check_keys,
    check_number,
    check_whole,
    parse_variant,
    to_plain,
)

MlpKind = Literal["gelu", "gelu_tanh", "swiglu"]
"""``W2 gelu(W1 x)`` (exact or tanh form), or ``W2 (silu(Wg x) * W1 x)`` (Shazeer 2020)."""
StreamDtype = Literal["float32", "compute"]
"""``compute`` stores the stream in the dtype of the matrices, to show what that does to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotary:
    """Queries and keys turned by their position's angles (Su et al. 2021; Llama's layout)."""

    kind: ClassVar[str] = "rotary"
    base: float = 10_000.0

    def __post_init__(self) -> None:
        check_number("rotary.base", self.base, at_least=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedPositions:
    """One learned vector per position, added to the embedding (GPT-2)."""

    kind: ClassVar[str] = "learned"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPositions:
    """No information on position but what a causal mask gives."""

    kind: ClassVar[str] = "none"


Positions = Rotary | LearnedPositions | NoPositions
_NORMS = (RmsNorm, LayerNorm)
_POSITIONS = (Rotary, LearnedPositions, NoPositions)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerConfig:
    """Shape and residual rule of a `ResidualTransformer`.

    Raises:
        ConfigError: A value is not allowed; the message has the key, the value and what is allowed.
    """

    n_layers: int
    """Blocks, each with two writes."""
    d_model: int
    """Width of the stream."""
    n_heads: int
    """Query heads of a layer."""
    d_vocab: int
    """Size of the vocabulary."""
    n_ctx: int
    """Longest sequence, in tokens."""
    n_kv_heads: int | None = None
    """Heads of keys and values; None: as many as query heads (no grouping)."""
    d_head: int | None = None
    """Width of a head; None: d_model / n_heads."""
    d_mlp: int | None = None
    """Hidden width of the MLP; None: 4 d_model."""
    rule: ResidualRule = PLAIN
    """How branches are written into the stream."""
    placement: Placement | None = None
    """Where the norm stands; None: where the rule was published with it."""
    norm: Norm = RMS_NORM
    positions: Positions = Rotary()
    mlp: MlpKind = "gelu"
    causal: bool = True
    """False: every position sees every other."""
    bias: bool = False
    """True: a bias in every matrix of attention and MLP."""
    dropout: float = 0.0
    """Probability, for the embedding, the attention pattern and the branches, in training."""
    tied: bool = True
    """True: the unembedding is the embedding."""
    parallel: bool = False
    """True: both sublayers of a block read the same stream (GPT-J), each through its own norm."""
    embed_norm: bool = False
    """True: the embedding is normed before the first block (an option of Peri-LN)."""
    stream_dtype: StreamDtype = "float32"
    init: Initialisation | None = None
    """How matrices are drawn; None: as the rule asks."""

    def __post_init__(self) -> None:
        for key in ("n_layers", "d_model", "n_heads", "d_vocab", "n_ctx"):
            check_whole(key, getattr(self, key), at_least=1)
        for key in ("n_kv_heads", "d_head", "d_mlp"):
            if getattr(self, key) is not None:
                check_whole(key, getattr(self, key), at_least=1)
        check_choice("mlp", self.mlp, get_args(MlpKind))
        check_choice("stream_dtype", self.stream_dtype, get_args(StreamDtype))
        for key in ("causal", "bias", "tied", "parallel", "embed_norm"):
            check_choice(key, getattr(self, key), (True, False))
        check_number("dropout", self.dropout, at_least=0.0, below=1.0)
        self._parse_variants()
        self._check_heads()
        self._check_placement()
        self._check_parallel()

    def _parse_variants(self) -> None:
        parsed: dict[str, object] = {
            "rule": parse_rule(self.rule),
            "norm": parse_variant("norm", self.norm, _NORMS),
            "positions": parse_variant("positions", self.positions, _POSITIONS),
        }
        if self.init is not None:
            parsed["init"] = parse_variant("init", self.init, INITIALISATIONS)
        for key, value in parsed.items():
            object.__setattr__(self, key, value)

    def _check_heads(self) -> None:
        if self.d_head is None and self.d_model % self.n_heads:
            raise ConfigError(
                f"n_heads must divide d_model ({self.d_model}) where d_head is not given, "
                f"got {self.n_heads}"
            )
        if self.n_heads % self.key_heads:
            raise ConfigError(
                f"n_kv_heads must divide n_heads ({self.n_heads}), got {self.key_heads}"
            )
        if isinstance(self.positions, Rotary) and self.head_width % 2:
            raise ConfigError(f"d_head must be even for rotary positions, got {self.head_width}")

    def _check_placement(self) -> None:
        if self.placement is None:
            return
        check_placement(self.placement, self.rule.placements, self.rule.kind)

    def _check_parallel(self) -> None:
        if not self.parallel:
            return
        if not self.rule.is_additive or self.norm_placement == "post":
            raise ConfigError(
                "parallel must be False where a write changes the skip or the stream is normed "
                f"(rule {self.rule.kind!r}, placement {self.norm_placement!r}), got True"
            )

    @property
    def key_heads(self) -> int:
        """Heads of keys and values."""
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    @property
    def head_width(self) -> int:
        """Width of a head."""
        return self.d_model // self.n_heads if self.d_head is None else self.d_head

    @property
    def mlp_width(self) -> int:
        """Hidden width of the MLP."""
        return 4 * self.d_model if self.d_mlp is None else self.d_mlp

    @property
    def norm_placement(self) -> Placement:
        """Where the norm stands: as configured, or as the rule was published."""
        return self.rule.placement if self.placement is None else self.placement

    @property
    def has_final_norm(self) -> bool:
        """True unless the stream is normed by its blocks (``post``) or never (``none``)."""
        return self.norm_placement not in ("post", "none")

    @property
    def depth(self) -> Depth:
        """Blocks and writes."""
        return Depth(n_layers=self.n_layers, n_writes=2 * self.n_layers)

    @property
    def plan(self) -> WritePlan:
        """How every block writes."""
        return WritePlan(
            rule=self.rule,
            placement=self.norm_placement,
            norm=self.norm,
            depth=self.depth,
            d_model=self.d_model,
            names=("attn", "mlp"),
            dropout=self.dropout,
        )

    @property
    def initialisation(self) -> Initialisation:
        """How matrices are drawn: as configured, or as the rule asks."""
        return self.rule.initialisation if self.init is None else self.init

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote, or what a person typed.

        Raises:
            ConfigError: A key is unknown or missing, or a value is not allowed.
        """
        known = [field.name for field in fields(cls)]
        check_keys("transformer config", given, known)
        missing = [key for key in known[:5] if key not in given]
        if missing:
            raise ConfigError(f"transformer config lacks {missing}; these have no default")
        return cls(**given)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, fit for JSON and YAML."""
        return to_plain(self)
