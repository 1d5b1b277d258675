"""What kind of result was saved here?  Reads any of them back."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

from resstream.errors import ResultError
from resstream.stream.result import Result

_KINDS = {
    "resstream.ablate/1": "resstream.analysis.ablation_result:AblationResult",
    "resstream.attention/1": "resstream.analysis.attention:AttentionResult",
    "resstream.attribute/1": "resstream.analysis.direct_logit_attribution:AttributionResult",
    "resstream.attribution_patch/1": (
        "resstream.analysis.attribution_patching:AttributionPatchResult"
    ),
    "resstream.check/1": "resstream.checks.report:CheckReport",
    "resstream.compare/1": "resstream.checks.comparison:CompareResult",
    "resstream.experiment/1": "resstream.train.experiments.report:ExperimentReport",
    "resstream.gradients/1": "resstream.analysis.gradients:GradientResult",
    "resstream.lens_profile/1": "resstream.analysis.lens_profile:LensProfileResult",
    "resstream.logit_lens/1": "resstream.analysis.logit_lens:LogitLensResult",
    "resstream.patch/1": "resstream.analysis.patch_result:PatchResult",
    "resstream.monitor/1": "resstream.train.recording:TrainingRecording",
    "resstream.path_patch/1": "resstream.analysis.path_patching:PathPatchResult",
    "resstream.precision/1": "resstream.analysis.precision:PrecisionResult",
    "resstream.ranks/1": "resstream.analysis.ranks:RankResult",
    "resstream.record/1": "resstream.recording.result:Recording",
    "resstream.similarity/1": "resstream.analysis.similarity:SimilarityResult",
    "resstream.train/1": "resstream.train.result:TrainingResult",
    "resstream.tuned_lens/1": "resstream.analysis.tuned_lens:TunedLensResult",
}
"""Schema -> where its class is."""


def load_result(directory: str | Path) -> Result:
    """Read back what `Result.save` wrote.

    Raises:
        ResultError: There is no result, it is damaged, or its schema is not known.
    """
    path = Path(directory) / "result.json"
    text = _read(path)
    kind = _class_of(text, path)
    try:
        return kind.from_json(text)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as err:
        raise ResultError(f"{path} is damaged: {type(err).__name__}: {err}") from err


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError) as err:
        raise ResultError(
            f"no result in {path.parent}: it must hold result.json, as `--out` writes it"
        ) from err
    except (OSError, UnicodeDecodeError) as err:
        raise ResultError(f"cannot read {path}: {err}") from err


def _class_of(text: str, path: Path) -> type[Result]:
    try:
        plain: Any = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as err:
        raise ResultError(f"{path} is damaged: {err}") from err
    schema = plain.get("schema") if isinstance(plain, dict) else None
    if not isinstance(schema, str) or schema not in _KINDS:
        known = ", ".join(_KINDS)
        raise ResultError(f"{path}: schema must be one of {known}, got {schema!r}")
    module, _, name = _KINDS[schema].partition(":")
    return getattr(import_module(module), name)
