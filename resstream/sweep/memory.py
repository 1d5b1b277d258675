"""How much memory may a sweep take, and how much will it?"""

import math
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from resstream.errors import ConfigError
from resstream.stream.model import StreamModel
from resstream.sweep.attention import ATTENTION_BYTES
from resstream.sweep.packed import ROWS
from resstream.sweep.patches import head_count

_UNITS = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_UNKNOWN = 4 * 2**30
_MEMORY_INFO = Path("/proc/meminfo")
_PROCESS_STATUS = Path("/proc/self/status")
_WITHOUT_SCORES = ("sdpa", "flash_attention_2", "flash_attention_3")
_CELL_BYTES = 160
"""A cell as Python keeps it, its place in a list, and its result."""
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


def peak_memory() -> int:
    """The most bytes that this process has had in memory at once.

    Not the system's `ru_maxrss` where it can be helped: that one begins with the size of the
    process that started this one.
    """
    if _PROCESS_STATUS.is_file():
        found = re.search(r"^VmHWM:\s*(\d+) kB", _PROCESS_STATUS.read_text(), re.MULTILINE)
        if found is not None:
            return int(found[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def show_bytes(count: float) -> str:
    """A size for people: ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def block_bytes(model: StreamModel, rows: int) -> int:
    """What one call of a block on `rows` positions takes, attention scores apart: roughly.

    The outputs of all its matrices and what is made of each, and some copies of the stream.
    """
    first = model.module.get_submodule(model.spec.blocks[0].module)
    widths = sum(max(value.shape) for value in first.parameters() if value.ndim == 2)
    return model.dtype.itemsize * rows * (2 * widths + 8 * model.spec.d_model)


def scores_bytes(model: StreamModel, sequences: int, length: int) -> int:
    """What attention takes that keeps its scores; nothing where torch's own kernels are used."""
    config = getattr(model.module, "config", None)
    if getattr(config, "_attn_implementation", "eager") in _WITHOUT_SCORES:
        return 0
    heads = head_count(model) or 1
    return 3 * model.dtype.itemsize * sequences * heads * length * length


def stream_bytes(model: StreamModel, rows: int) -> int:
    """What the stream at `rows` positions takes."""
    return model.dtype.itemsize * rows * model.spec.d_model


@dataclass(frozen=True, slots=True)
class PairCosts:
    """What the parts of a patching sweep over pairs of one length take, in bytes.

    Args:
        model: The model.
        length: Tokens of each prompt.
        kept_channels: Channels of the values at the site, all layers together.
        kv_channels: Channels of keys and values, all layers together; 0 without suffixes.
        cells: Cells of one pair.
        suffixes: True if suffixes are run alone.
    """

    model: StreamModel
    length: int
    kept_channels: int
    kv_channels: int
    cells: int
    suffixes: bool

    @property
    def pair(self) -> int:
        """What is kept of one pair: both runs' streams and values, one's keys and values."""
        spec, size = self.model.spec, self.model.dtype.itemsize
        streams = 2 * (spec.n_layers + 1) * spec.d_model + 2 * self.kept_channels
        masks = 2 * self.length * self.length
        return self.length * size * (streams + self.kv_channels) + masks + self.cells * _CELL_BYTES

    @property
    def rows(self) -> int:
        """How many positions go through a block at once."""
        return max(self.length, ROWS)

    @property
    def chunk(self) -> int:
        """What running variants takes beside their streams."""
        if self.suffixes:
            size = self.model.dtype.itemsize * self.kv_channels // self.model.spec.n_layers
            attention = 2 * min(ATTENTION_BYTES, self.rows * self.length * size)
        else:
            sequences = self.rows // self.length
            attention = scores_bytes(self.model, sequences, self.length)
        return READOUT_BYTES + block_bytes(self.model, self.rows) + attention

    def variant(self, position: int) -> int:
        """What a variant that begins at `position` takes: its stream before and after a block."""
        return 2 * stream_bytes(self.model, self.length - position * self.suffixes)

    def peak(self, pairs: int, state: int) -> int:
        """The most at once: while `pairs` are run unchanged, or while their variants are."""
        unchanged = block_bytes(self.model, 2 * pairs * self.length)
        unchanged += scores_bytes(self.model, 2 * pairs, self.length)
        return pairs * self.pair + max(unchanged, self.chunk + state)
