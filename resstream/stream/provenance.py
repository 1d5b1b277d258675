"""What a result needs to say so that somebody can repeat it."""

import platform
import sys
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resstream.stream.model import StreamModel

_PACKAGES = ("resstream", "torch", "transformers", "transformer-lens", "numpy", "scipy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where a number comes from: model, text, precision, seed and versions."""

    model: str
    """What the user named: a path, a hub id, or the class of a module in memory."""
    model_hash: str
    """SHA-256 of names, shapes and values of the weights (first 16 hex digits)."""
    text: str
    """What text was used, in a phrase."""
    text_hash: str
    """SHA-256 of the token ids (first 16 hex digits)."""
    dtype: str
    device: str
    seed: int
    replay_error: float
    versions: dict[str, str]


def package_versions() -> dict[str, str]:
    """Versions of Python and of the packages that the numbers depend on, where installed."""
    found = {name: _version(name) for name in _PACKAGES}
    installed = {name: number for name, number in found.items() if number is not None}
    return {"python": platform.python_version(), "platform": sys.platform} | installed


@cache
def _version(name: str) -> str | None:
    """Read once: it is a file of its own for each package, and short sweeps feel it."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def provenance_of(model: "StreamModel", text: str, text_hash: str, *, seed: int) -> Provenance:
    """The provenance of a result on `model` and a text."""
    return Provenance(
        model=model.name,
        model_hash=model.weights_hash,
        text=text,
        text_hash=text_hash,
        dtype=str(model.dtype).removeprefix("torch."),
        device=str(model.device),
        seed=seed,
        replay_error=model.spec.replay_error,
        versions=package_versions(),
    )
