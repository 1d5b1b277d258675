"""Residual-stream analysis of transformer checkpoints: find the layer that is at fault.

>>> import resstream as rs
>>> model = rs.load("demo")
>>> rs.check(model).verdict
'healthy'

This module is the only one that re-exports.  It is lazy (PEP 562): a name is imported when it is
first asked for, so that ``import resstream`` and ``resstream --help`` load no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from resstream.analysis.ablation import AblationResult, ablate
    from resstream.analysis.attribution_patching import AttributionPatchResult, attribution_patch
    from resstream.analysis.patch_result import PatchResult
    from resstream.analysis.patching import patch
    from resstream.checks.engine import check
    from resstream.checks.report import CheckReport
    from resstream.errors import (
        CheckpointError,
        ConfigError,
        DiscoveryError,
        OutputError,
        ResstreamError,
        ResultError,
        SilentHookError,
        TextError,
        UnknownSiteError,
        UnsupportedModelError,
    )
    from resstream.nn.transformer import ResidualTransformer
    from resstream.recording.recorder import record
    from resstream.recording.result import Recording
    from resstream.reports.results import load_result
    from resstream.stream.faults import inject
    from resstream.stream.loading import load
    from resstream.stream.model import StreamModel

__version__ = "0.1.0"

_FACE = {
    "AblationResult": "resstream.analysis.ablation",
    "AttributionPatchResult": "resstream.analysis.attribution_patching",
    "CheckReport": "resstream.checks.report",
    "CheckpointError": "resstream.errors",
    "ConfigError": "resstream.errors",
    "DiscoveryError": "resstream.errors",
    "OutputError": "resstream.errors",
    "PatchResult": "resstream.analysis.patch_result",
    "Recording": "resstream.recording.result",
    "ResidualTransformer": "resstream.nn.transformer",
    "ResstreamError": "resstream.errors",
    "ResultError": "resstream.errors",
    "SilentHookError": "resstream.errors",
    "StreamModel": "resstream.stream.model",
    "TextError": "resstream.errors",
    "UnknownSiteError": "resstream.errors",
    "UnsupportedModelError": "resstream.errors",
    "ablate": "resstream.analysis.ablation",
    "attribution_patch": "resstream.analysis.attribution_patching",
    "check": "resstream.checks.engine",
    "inject": "resstream.stream.faults",
    "load": "resstream.stream.loading",
    "load_result": "resstream.reports.results",
    "patch": "resstream.analysis.patching",
    "record": "resstream.recording.recorder",
}
"""Public name -> module that defines it."""

__all__ = [
    "AblationResult",
    "AttributionPatchResult",
    "CheckReport",
    "CheckpointError",
    "ConfigError",
    "DiscoveryError",
    "OutputError",
    "PatchResult",
    "Recording",
    "ResidualTransformer",
    "ResstreamError",
    "ResultError",
    "SilentHookError",
    "StreamModel",
    "TextError",
    "UnknownSiteError",
    "UnsupportedModelError",
    "__version__",
    "ablate",
    "attribution_patch",
    "check",
    "inject",
    "load",
    "load_result",
    "patch",
    "record",
]


def __getattr__(name: str) -> Any:
    module = _FACE.get(name)
    if module is None:
        raise AttributeError(f"module 'resstream' has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
