"""What does the configuration (and the structure that was found) say about training?"""

from pathlib import Path
from typing import Any

import torch
import yaml

from resstream.checks.registry import RULES
from resstream.checks.report import Finding
from resstream.checks.rules import (
    rs501_narrow_stream,
    rs502_post_norm,
    rs503_large_init,
)
from resstream.checks.weights import WeightTable
from resstream.stream.model import StreamModel
from resstream.stream.spec import Oddity, StreamSpec


def remarks(model: StreamModel, table: WeightTable, active: frozenset[str]) -> list[Finding]:
    """Remarks on pitfalls of architecture and training; they never fail a run by default."""
    config = getattr(model.module, "config", None)
    bits = torch.finfo(model.dtype).bits
    found = {
        "RS501": rs501_narrow_stream.look(config, bits),
        "RS502": rs502_post_norm.look(model.spec, warmup_steps(config)),
        "RS503": rs503_large_init.look(model.spec, table),
        "RS504": odd_blocks(model.spec, "activation"),
        "RS505": odd_blocks(model.spec, "broadcast"),
    }
    return [
        RULES[code].of_model(statement)
        for code, statement in found.items()
        if statement is not None and code in active
    ]


def odd_blocks(spec: StreamSpec, oddity: Oddity) -> str | None:
    """What the probe of discovery saw in blocks (RS504, RS505), in a sentence; None if nothing."""
    found = [block for block in spec.blocks if block.oddity == oddity]
    if not found:
        return None
    return f"{len(found)} of {spec.n_layers} blocks: in L{found[0].layer} {found[0].reason}"


def warmup_steps(config: Any) -> int | None:
    """Steps of the warm-up that the checkpoint was trained with; None where that is not written.

    `resstream train` leaves its configuration beside the weights.
    """
    file = Path(getattr(config, "name_or_path", None) or "nowhere") / "training.yaml"
    try:
        steps = yaml.safe_load(file.read_text("utf-8"))["training"]["warmup_steps"]
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError):
        return None
    return steps if isinstance(steps, int) else None
