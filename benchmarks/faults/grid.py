"""Which faults are tried, what should be said about each, and which half it belongs to.

Kinds x severities x layers x writes of science's fault bench, on trained models.  The first two
layers and the last are left out: they are unlike all others in every model.  Half of the cases (by
a hash of model, kind and layer, so that severities of one place stay together) is for tuning
thresholds, the other half is what is reported; layers that nobody had looked at were kept for the
end.  `split.csv` holds the assignment.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from benchmarks.faults.models import RULES

Half = Literal["tune", "report", "fresh"]

DEPTHS: dict[str, tuple[int, tuple[int, ...]]] = {
    "demo": (8, (2, 3, 4, 5, 6)),
    "stories260K": (5, (2, 3)),
    "smollm2": (30, (6, 14, 22)),
    **{name: (8, (3, 5)) for name in RULES},
}
"""How many layers each trained model has, and which of them are damaged."""
FRESH: dict[str, tuple[int, ...]] = {name: (4, 6) for name in RULES}
"""Layers that were damaged for the first time when all rules and thresholds stood."""
Severities = dict[str, tuple[float | None, ...]]

_OF_WRITES: Severities = {
    "zero": (None,),
    "scale": (0.03, 0.1, 0.25, 0.5, 2, 3, 4, 16, 64),
    "gain_scale": (0.03, 0.1, 0.25, 2, 4, 16),
    "reinit": (None,),
    "noise": (1, 3),
    "sign_flip": (None,),
    "channel_spike": (5, 10, 50, 500),
    "quantize": (2, 3),
    "bit_flip": (25, 30),
    "rank_one": (None,),
    "nan": (None,),
}
_OF_ATTENTION: Severities = {
    "permute_heads": (None,),
    "uniform_attention": (None,),
}
_OF_LAYERS: Severities = {
    "swap": (1, 2),
    "duplicate": (None,),
}
_OF_TRAINED_LAYERS: Severities = _OF_LAYERS | {"stale": (None,)}
"""Where an earlier checkpoint is at hand."""
_FEW: Severities = {
    "scale": (0.1, 4, 16),
    "gain_scale": (0.25, 4),
    "noise": (3,),
    "channel_spike": (50,),
    "quantize": (2,),
    "bit_flip": (30,),
    "swap": (2,),
}
"""SmolLM2 is a thousand times as large as the others, and damaged at fewer severities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultCase:
    """One fault in one model."""

    model: str
    fault: str
    severity: float | None
    layer: int
    write: str | None
    """None for faults of whole layers."""

    @property
    def name(self) -> str:
        """Unique, and stable over runs."""
        amount = "" if self.severity is None else f" {self.severity:g}"
        return f"{self.model} {self.fault}{amount} L{self.layer} {self.write or 'layer'}"

    @property
    def order(self) -> str:
        """A place in an order without meaning, so that the first few cases are a fair sample."""
        return hashlib.sha256(self.name.encode()).hexdigest()

    @property
    def half(self) -> Half:
        """Tuned on, reported, or kept for the end."""
        if self.layer in FRESH.get(self.model, ()):
            return "fresh"
        key = f"{self.model} {self.fault} {self.layer}".encode()
        return "tune" if hashlib.sha256(key).digest()[0] % 2 else "report"

    @property
    def layers(self) -> frozenset[int]:
        """Layers of which any is right: weights do not say which of two copies came first."""
        if self.fault == "swap":
            return frozenset((self.layer, self.layer + int(self.severity or 1)))
        if self.fault == "duplicate":
            return frozenset((self.layer, self.layer + 1))
        return frozenset((self.layer,))

    @property
    def codes(self) -> frozenset[str]:
        """Rules that name the fault rightly."""
        if self.fault in ("scale", "gain_scale"):
            small = self.severity is not None and self.severity < 1
            return frozenset(("RS102", "RS103") if small else ("RS201",))
        return _CODES[self.fault]


_CODES = {
    "zero": frozenset(("RS101",)),
    "reinit": frozenset(("RS402",)),
    "noise": frozenset(("RS402", "RS203", "RS201")),
    "sign_flip": frozenset(("RS203",)),
    "channel_spike": frozenset(("RS202",)),
    "quantize": frozenset(("RS403",)),
    "bit_flip": frozenset(("RS404",)),
    "rank_one": frozenset(("RS107",)),
    "nan": frozenset(("RS001",)),
    "permute_heads": frozenset(("RS405",)),
    "uniform_attention": frozenset(("RS401", "RS105")),
    "swap": frozenset(("RS407",)),
    "duplicate": frozenset(("RS406",)),
    "stale": frozenset(("RS203",)),
}


def cases() -> Iterator[FaultCase]:
    """All of the grid."""
    for model, (n_layers, layers) in DEPTHS.items():
        whole = _OF_TRAINED_LAYERS if model in RULES else _OF_LAYERS
        for layer in (*layers, *FRESH.get(model, ())):
            for write in ("attn", "mlp"):
                yield from _at(model, layer, write, _OF_WRITES)
            yield from _at(model, layer, "attn", _OF_ATTENTION)
            for case in _at(model, layer, None, whole):
                if max(case.layers) < n_layers:
                    yield case


def _at(model: str, layer: int, write: str | None, kinds: Severities) -> Iterator[FaultCase]:
    few = _FEW if model == "smollm2" else {}
    for fault, severities in kinds.items():
        for severity in few.get(fault, severities):
            yield FaultCase(model=model, fault=fault, severity=severity, layer=layer, write=write)
