"""`check --static`: what do the weights of a checkpoint say, if it is never run?

Files are read part by part, so that a checkpoint of any size needs the memory of a part.
"""

import hashlib
import math
from collections.abc import Collection
from pathlib import Path

from resstream.checks.checking import rank, verdict_of
from resstream.checks.facts import STATIC_CODES, static_findings
from resstream.checks.registry import active_codes, require_answerable
from resstream.checks.report import CheckReport
from resstream.checks.weights import WeightTable, read_files, read_model_weights
from resstream.errors import CheckpointError
from resstream.stream.loading import load
from resstream.stream.provenance import Provenance, package_versions
from resstream.stream.tensor_files import checkpoint_files

_OUTPUTS = (
    "o_proj", "down_proj", "c_proj", "out_proj", "dense_4h_to_h", "attention.dense",
    "output.dense", "fc2", "fc_out", "out_lin", "lin2", ".wo.", ".w2.", "W_O", "W_out",
)  # fmt: skip
"""Words in the names of matrices that project into the stream: without a run there is no proof."""


def check_static(
    source: str | Path,
    *,
    select: str | Collection[str] | None = None,
    ignore: str | Collection[str] | None = None,
) -> CheckReport:
    """Look at the weights alone.

    Args:
        source: A directory with safetensors files, one such file, or a demo.
        select: Codes (or beginnings of codes) of the rules that are used; all if None.
        ignore: Codes of rules that are left out.

    Returns:
        A report without readings and experiments; findings are confirmed where they are facts, and
        suspicions where only a run could tell.

    Raises:
        CheckpointError: There are no weights to read block by block.
        ConfigError: An unknown code.
    """
    active = active_codes(select, ignore)
    require_answerable(active, STATIC_CODES, "can be told from weights alone; leave --static away")
    table = _read(str(source))
    if not table.in_blocks:
        raise CheckpointError(f"{source} holds no numbered layers to compare")
    outputs = frozenset(r.name for r in table.in_blocks if any(w in r.name for w in _OUTPUTS))
    findings = rank(static_findings(table, outputs, active))
    return CheckReport(
        provenance=_provenance(str(source), table),
        model=str(source),
        text="no text: weights alone",
        verdict=verdict_of(findings),
        findings=tuple(findings),
        base_loss=math.nan,
        writes=(),
        experiments=(),
    )


def _read(source: str) -> WeightTable:
    if source.partition(":")[0] == "demo" and not Path(source).exists():
        return read_model_weights(load(source))
    return read_files(checkpoint_files(source))


def _provenance(source: str, table: WeightTable) -> Provenance:
    digest = hashlib.sha256()
    for reading in sorted(table.readings, key=lambda each: each.name):
        digest.update(f"{reading.name}{reading.shape}{reading.digest}".encode())
    return Provenance(
        model=source,
        model_hash=digest.hexdigest()[:16],
        text="no text",
        text_hash="",
        dtype="as stored",
        device="cpu",
        seed=0,
        replay_error=math.nan,
        versions=package_versions(),
    )
