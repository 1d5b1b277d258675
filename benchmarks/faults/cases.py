"""The cases: a model, what is broken in it, and which findings must come of it.

Random models are those of the standing test (six LLaMA layers, hidden 64, five seeds); trained ones
are the embedded demo and, if a path is given, SmolLM2.
"""

from dataclasses import dataclass

Place = tuple[str, int, str | None]
"""Code of the rule, layer, write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One injection."""

    fault: str
    layer: int
    write: str
    severity: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One model to check."""

    name: str
    source: str
    """``random:SEED``, ``demo``, or ``smollm2``."""
    faults: tuple[Fault, ...] = ()
    expected: tuple[Place, ...] = ()
    """Confirmed findings, the first one first; empty for a healthy model."""


def _both(fault: str, severity: float) -> tuple[Fault, ...]:
    return tuple(Fault(fault=fault, layer=3, write=w, severity=severity) for w in ("attn", "mlp"))


_COLLAPSED: tuple[Place, ...] = (("RS102", 3, "attn"), ("RS102", 3, "mlp"))


def _random_cases(seed: int) -> list[Case]:
    source = f"random:{seed}"
    large = (Fault(fault="scale", layer=3, write="mlp", severity=30),)
    return [
        Case(name=f"{source} healthy", source=source),
        Case(
            name=f"{source} outputs x1e-3",
            source=source,
            faults=_both("scale", 1e-3),
            expected=_COLLAPSED,
        ),
        Case(
            name=f"{source} gains x1e-3",
            source=source,
            faults=_both("gain_scale", 1e-3),
            expected=_COLLAPSED,
        ),
        Case(
            name=f"{source} down x30", source=source, faults=large, expected=(("RS201", 3, "mlp"),)
        ),
    ]


def _one(source: str, code: str, fault: Fault) -> Case:
    severity = "" if fault.severity is None else f" {fault.severity:g}"
    return Case(
        name=f"{source} {fault.fault}{severity} L{fault.layer} {fault.write}",
        source=source,
        faults=(fault,),
        expected=((code, fault.layer, fault.write),),
    )


SMOLLM2 = [
    Case(name="smollm2 healthy", source="smollm2"),
    _one("smollm2", "RS101", Fault(fault="zero", layer=14, write="attn")),
    _one("smollm2", "RS201", Fault(fault="scale", layer=6, write="mlp", severity=16)),
    _one("smollm2", "RS203", Fault(fault="sign_flip", layer=22, write="mlp")),
    _one("smollm2", "RS202", Fault(fault="channel_spike", layer=17, write="mlp", severity=50)),
]

DEMO = [
    Case(name="demo healthy", source="demo"),
    _one("demo", "RS101", Fault(fault="zero", layer=4, write="attn")),
    _one("demo", "RS102", Fault(fault="scale", layer=3, write="mlp", severity=1e-4)),
    _one("demo", "RS201", Fault(fault="scale", layer=4, write="mlp", severity=24)),
    _one("demo", "RS203", Fault(fault="sign_flip", layer=5, write="mlp")),
    _one("demo", "RS001", Fault(fault="nan", layer=2, write="attn")),
]

RANDOM = [case for seed in range(5) for case in _random_cases(seed)]
