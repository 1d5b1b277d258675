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
    from resstream.analysis.ablation import ablate
    from resstream.analysis.ablation_result import AblationResult
    from resstream.analysis.attention import AttentionResult, attention
    from resstream.analysis.attribution_patching import AttributionPatchResult, attribution_patch
    from resstream.analysis.direct_logit_attribution import (
        AttributionResult,
        direct_logit_attribution,
    )
    from resstream.analysis.gradients import GradientResult, gradients
    from resstream.analysis.lens_profile import LensProfileResult, lens_profile
    from resstream.analysis.logit_lens import LogitLensResult, logit_lens
    from resstream.analysis.patch_result import PatchResult
    from resstream.analysis.patching import patch
    from resstream.analysis.path_patching import PathPatchResult, path_patch
    from resstream.analysis.precision import PrecisionResult, precision_drift
    from resstream.analysis.ranks import RankResult, ranks
    from resstream.analysis.similarity import SimilarityResult, similarity
    from resstream.analysis.tuned_lens import (
        TunedLens,
        TunedLensConfig,
        TunedLensResult,
        tuned_lens,
    )
    from resstream.checks.checking import check
    from resstream.checks.report import CheckReport
    from resstream.errors import (
        CheckpointError,
        ConfigError,
        DiscoveryError,
        NonFiniteError,
        OutputError,
        ResstreamError,
        ResultError,
        SilentHookError,
        TextError,
        UnknownSiteError,
        UnsupportedModelError,
    )
    from resstream.nn.transformer import ResidualTransformer
    from resstream.recording.cache import ActivationCache, run_with_cache
    from resstream.recording.recorder import record
    from resstream.recording.result import Recording
    from resstream.reports.results import load_result
    from resstream.stream.faults import inject
    from resstream.stream.loading import load
    from resstream.stream.model import StreamModel
    from resstream.stream.texts import Corpus, read_corpus
    from resstream.train.monitor import Monitor

__version__ = "0.1.0"

_FACE = {
    "AblationResult": "resstream.analysis.ablation_result",
    "ActivationCache": "resstream.recording.cache",
    "AttentionResult": "resstream.analysis.attention",
    "AttributionPatchResult": "resstream.analysis.attribution_patching",
    "AttributionResult": "resstream.analysis.direct_logit_attribution",
    "CheckReport": "resstream.checks.report",
    "CheckpointError": "resstream.errors",
    "ConfigError": "resstream.errors",
    "Corpus": "resstream.stream.texts",
    "DiscoveryError": "resstream.errors",
    "GradientResult": "resstream.analysis.gradients",
    "LensProfileResult": "resstream.analysis.lens_profile",
    "LogitLensResult": "resstream.analysis.logit_lens",
    "Monitor": "resstream.train.monitor",
    "NonFiniteError": "resstream.errors",
    "OutputError": "resstream.errors",
    "PatchResult": "resstream.analysis.patch_result",
    "PathPatchResult": "resstream.analysis.path_patching",
    "PrecisionResult": "resstream.analysis.precision",
    "RankResult": "resstream.analysis.ranks",
    "Recording": "resstream.recording.result",
    "ResidualTransformer": "resstream.nn.transformer",
    "ResstreamError": "resstream.errors",
    "ResultError": "resstream.errors",
    "SilentHookError": "resstream.errors",
    "SimilarityResult": "resstream.analysis.similarity",
    "StreamModel": "resstream.stream.model",
    "TextError": "resstream.errors",
    "TunedLens": "resstream.analysis.tuned_lens",
    "TunedLensConfig": "resstream.analysis.tuned_lens",
    "TunedLensResult": "resstream.analysis.tuned_lens",
    "UnknownSiteError": "resstream.errors",
    "UnsupportedModelError": "resstream.errors",
    "ablate": "resstream.analysis.ablation",
    "attention": "resstream.analysis.attention",
    "attribution_patch": "resstream.analysis.attribution_patching",
    "check": "resstream.checks.checking",
    "direct_logit_attribution": "resstream.analysis.direct_logit_attribution",
    "gradients": "resstream.analysis.gradients",
    "inject": "resstream.stream.faults",
    "lens_profile": "resstream.analysis.lens_profile",
    "load": "resstream.stream.loading",
    "load_result": "resstream.reports.results",
    "logit_lens": "resstream.analysis.logit_lens",
    "patch": "resstream.analysis.patching",
    "path_patch": "resstream.analysis.path_patching",
    "precision_drift": "resstream.analysis.precision",
    "ranks": "resstream.analysis.ranks",
    "read_corpus": "resstream.stream.texts",
    "record": "resstream.recording.recorder",
    "run_with_cache": "resstream.recording.cache",
    "similarity": "resstream.analysis.similarity",
    "tuned_lens": "resstream.analysis.tuned_lens",
}
"""Public name -> module that defines it."""

__all__ = [
    "AblationResult",
    "ActivationCache",
    "AttentionResult",
    "AttributionPatchResult",
    "AttributionResult",
    "CheckReport",
    "CheckpointError",
    "ConfigError",
    "Corpus",
    "DiscoveryError",
    "GradientResult",
    "LensProfileResult",
    "LogitLensResult",
    "Monitor",
    "NonFiniteError",
    "OutputError",
    "PatchResult",
    "PathPatchResult",
    "PrecisionResult",
    "RankResult",
    "Recording",
    "ResidualTransformer",
    "ResstreamError",
    "ResultError",
    "SilentHookError",
    "SimilarityResult",
    "StreamModel",
    "TextError",
    "TunedLens",
    "TunedLensConfig",
    "TunedLensResult",
    "UnknownSiteError",
    "UnsupportedModelError",
    "__version__",
    "ablate",
    "attention",
    "attribution_patch",
    "check",
    "direct_logit_attribution",
    "gradients",
    "inject",
    "lens_profile",
    "load",
    "load_result",
    "logit_lens",
    "patch",
    "path_patch",
    "precision_drift",
    "ranks",
    "read_corpus",
    "record",
    "run_with_cache",
    "similarity",
    "tuned_lens",
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
