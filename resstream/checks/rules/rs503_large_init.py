"""RS503: an untrained model whose branches do not start small."""

import math

import numpy as np

from resstream.checks.rule import Rule
from resstream.checks.weights import WeightTable
from resstream.stream.spec import StreamSpec

_DEEP = 12
_NOISE = 1.05

RULE = Rule(
    code="RS503",
    name="branches not small at initialisation",
    stage="config",
    severity="info",
    what="An untrained Pre-LN model draws its output matrices as wide as all others.",
    why="The stream's variance then grows with every write; deep models train worse or not at all.",
    detection="All output matrices look random (largest singular value at the random edge), and "
    "their standard deviation is not smaller than that of the matrices that read, as it would be "
    "with a factor 1/sqrt(2L), a zero initialisation or a gate. A remark on training.",
    traps="In a trained model nothing can be said, and nothing is: one matrix away from the edge "
    "silences the rule. Models with a LayerScale or a gate start small by it.",
    fix="scale the output matrices by 1/sqrt(2L) at initialisation, or use LayerScale or ReZero",
    source="Radford et al. (2019), GPT-2, section 2.3; Zhang et al. (2019), Fixup.",
    example="cat > deep.yaml <<'END'\n"
    "model: {n_layers: 12, d_model: 32, n_heads: 2, n_ctx: 64, init: {kind: normal}}\n"
    "tokenizer: {kind: bytes}\n"
    "training: {steps: 1, learning_rate: 1e-5}\n"
    "output: deep\n"
    "END\n"
    "resstream train deep.yaml\n"
    "resstream check deep",
)


def look(spec: StreamSpec, table: WeightTable) -> str | None:
    """What is to be known, in a sentence; None for trained or well drawn models."""
    names = {write.output_matrix for write in spec.writes}
    outputs = [r for r in table.in_blocks if r.name in names and r.is_matrix]
    readers = [r for r in table.in_blocks if r.name not in names and r.is_matrix]
    small_by_other_means = any(
        write.scale != 1.0 or write.branch is not None or write.skip_scale != 1.0
        for write in spec.writes
    )
    if spec.n_layers < _DEEP or not outputs or not readers or small_by_other_means:
        return None
    if any(r.is_zero or r.edge_ratio > _NOISE for r in outputs):
        return None
    ratio = float(np.median([_std(r.norm, r.shape) for r in outputs])) / float(
        np.median([_std(r.norm, r.shape) for r in readers])
    )
    if ratio < 0.75:
        return None
    return (
        f"the model is untrained and its output matrices are {ratio:.2g} times as wide as those "
        f"that read; {1 / math.sqrt(2 * spec.n_layers):.2g} would keep the stream's variance"
    )


def _std(norm: float, shape: tuple[int, ...]) -> float:
    return norm / math.sqrt(math.prod(shape))
