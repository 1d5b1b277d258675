"""How much memory may a sweep take, and how much will it?"""

import math
import re
from pathlib import Path

import torch

from resstream.errors import ConfigError
from resstream.stream.model import StreamModel

_UNITS = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_UNKNOWN = 4 * 2**30
_MEMORY_INFO = Path("/proc/meminfo")
READOUT_BYTES = 160 << 20
"""Logits of the rows that are read out at once, and what is made of them."""


def parse_memory(text: str) -> int:
    """Bytes of a size such as ``4GiB``, ``500 MB`` or ``2G``; all prefixes are powers of 1024.

    Raises:
        ConfigError: It is no size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if match is None or float(match[1]) <= 0:
        raise ConfigError(f"memory must be a size such as 4GiB or 500MiB, got {text!r}")
    size = float(match[1]) * _UNITS[match[2].upper()]
    if not math.isfinite(size):
        raise ConfigError(f"memory must be a size such as 4GiB or 500MiB, got {text[:20]!r}...")
    return int(size)


def free_memory(device: torch.device) -> int:
    """Half of what is free on the device, in bytes; 4 GiB where that is not known."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] // 2
    if _MEMORY_INFO.is_file():
        found = re.search(r"^MemAvailable:\s*(\d+) kB", _MEMORY_INFO.read_text(), re.MULTILINE)
        if found is not None:
            return int(found[1]) * 1024 // 2
    return _UNKNOWN


def show_bytes(count: float) -> str:
    """A size for people: ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def base_bytes(model: StreamModel, length: int, *, keeps_values: bool) -> int:
    """What the unchanged runs of a pair take: streams, values at the site, keys and values."""
    spec, size = model.spec, model.dtype.itemsize
    streams = 2 * (spec.n_layers + 1) + (2 * spec.n_layers if keeps_values else 0)
    return size * spec.d_model * length * (streams + 2 * spec.n_layers)


def block_bytes(model: StreamModel, rows: int) -> int:
    """What one call of a block on `rows` positions takes, roughly: MLP and attention inside it."""
    return model.dtype.itemsize * rows * 32 * model.spec.d_model


def variant_bytes(model: StreamModel, rows: int) -> int:
    """What a variant of `rows` positions takes: its stream before and after a block."""
    return model.dtype.itemsize * 2 * rows * model.spec.d_model
