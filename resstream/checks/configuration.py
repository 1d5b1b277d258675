"""What does the configuration (and the structure that was found) say about training?"""

import torch

from resstream.checks.registry import RULES
from resstream.checks.report import Finding
from resstream.checks.rules import rs501_narrow_stream, rs502_post_norm, rs503_large_init
from resstream.checks.weights import WeightTable
from resstream.stream.model import StreamModel


def remarks(model: StreamModel, table: WeightTable, active: frozenset[str]) -> list[Finding]:
    """Remarks on pitfalls of architecture and training; they never fail a run by default."""
    config = getattr(model.module, "config", None)
    bits = torch.finfo(model.dtype).bits
    found = {
        "RS501": rs501_narrow_stream.look(config, bits),
        "RS502": rs502_post_norm.look(model.spec),
        "RS503": rs503_large_init.look(model.spec, table),
    }
    return [
        Finding(
            code=code,
            status="confirmed",
            severity=RULES[code].severity,
            layer=None,
            write=None,
            site=None,
            statement=statement,
            evidence=(),
            remedy=RULES[code].fix,
        )
        for code, statement in found.items()
        if statement is not None and code in active
    ]
