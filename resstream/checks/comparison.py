"""`compare`: where do two checkpoints of one shape differ, and which difference matters?"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from jaxtyping import Float

from resstream.checks.proof import HARM_NATS, plain
from resstream.checks.registry import RULES
from resstream.checks.report import Evidence, Finding
from resstream.checks.transplants import (
    ChangedPart,
    Effect,
    changed_parts,
    own_errors,
    require_same_shape,
    transplant,
    weights_of,
)
from resstream.stream.model import StreamModel
from resstream.stream.provenance import provenance_of
from resstream.stream.result import Result
from resstream.stream.texts import Corpus, Texts, read_corpus

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

_BETTER_THAN_CHANCE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One changed block, or all that lies outside of blocks."""

    layer: int | None
    write: str | None
    tensors: tuple[str, ...]
    weight_change: float
    """|own - reference| / |reference| over the changed tensors."""
    own_error: float
    """Largest error of its writes on the reference's stream, over their norm; 0: the same."""
    restored: float
    """Change of the measure with the reference's weights put into the model: below 0, better."""
    restored_ci: tuple[float, float]
    transplanted: float
    """Change of the measure with the model's weights put into the reference: above 0, worse."""
    transplanted_ci: tuple[float, float]
    after: float
    """The measure with the reference's weights put into the model."""


@dataclass(frozen=True, kw_only=True)
class CompareResult(Result):
    """Differences of a model and a reference."""

    schema: ClassVar[str] = "resstream.compare/1"

    model: str
    reference: str
    text: str
    measure: Literal["loss", "divergence"]
    """Cross-entropy, or KL from the reference's output where the loss says nothing; in nats."""
    base: float
    """The measure of the model."""
    reference_base: float
    """The measure of the reference: its loss, or 0."""
    n_tokens: int
    differences: tuple[Difference, ...]
    first_divergence: str | None
    """Site of the first write that is off by itself; None if all are equal."""
    drift: Float[np.ndarray, " layer"]
    """|own stream - reference's| / |reference's| behind each block (median over tokens)."""

    def to_dataframe(self) -> "pd.DataFrame":
        """One row a changed block; effects in nats per token."""
        import pandas as pd

        rows = [
            {
                "layer": item.layer,
                "write": item.write,
                "n_tensors": len(item.tensors),
                "weight_change": item.weight_change,
                "own_error": item.own_error,
                "restored_nats": item.restored,
                "restored_low": item.restored_ci[0],
                "restored_high": item.restored_ci[1],
                "transplanted_nats": item.transplanted,
                "transplanted_low": item.transplanted_ci[0],
                "transplanted_high": item.transplanted_ci[1],
            }
            for item in self.differences
        ]
        columns = ["layer", "write", "n_tensors", "weight_change", "own_error", "restored_nats"]
        return pd.DataFrame(rows, columns=None if rows else columns)

    def plot(self) -> "go.Figure":
        """What each changed block costs, both ways."""
        from resstream.figures.intervals import IntervalRow, interval_rows

        rows: list[IntervalRow] = []
        for item in self.differences:
            name = "outside" if item.layer is None else f"layer {item.layer}"
            low, high = item.restored_ci
            rows.append(IntervalRow(f"{name} restored", item.restored, low, high, high < 0))
            low, high = item.transplanted_ci
            rows.append(IntervalRow(f"{name} into good", item.transplanted, low, high, low > 0))
        return interval_rows(rows, value_title=f"change of the {self.measure}, nats per token")


def compare(
    model: StreamModel,
    reference: StreamModel,
    texts: Texts | Corpus = None,
    *,
    seed: int = 0,
) -> CompareResult:
    """Find the tensors that differ and what each changed block does to the output.

    Args:
        model: A model of tokens with logits.
        reference: A checkpoint of the same shape.
        texts: What both read.
        seed: Of random ids where there is no text.

    Raises:
        ConfigError: The two have different shapes.
        UnsupportedModelError: The model predicts no tokens.
        TextError: The text can't be used.

    References:
        Zhang and Nanda (2023), arXiv:2309.16042.
    """
    require_same_shape(model, reference)
    corpus = read_corpus(model, texts, seed=seed)
    parts = changed_parts(model, reference)
    measure, good_loss = _measure(reference, corpus)
    restored = transplant(
        model,
        [weights_of(reference, part.names) for part in parts],
        corpus,
        measured_by=measure,
        towards=reference,
    )
    worse = transplant(
        reference,
        [weights_of(model, part.names) for part in parts],
        corpus,
        measured_by=measure,
        towards=reference,
    )
    errors, drift = own_errors(model, reference, corpus)
    off = [w.site for w, e in zip(model.spec.writes, errors, strict=True) if e > 0]
    base = restored[0].after - restored[0].value if restored else good_loss
    return CompareResult(
        provenance=provenance_of(model, corpus.description, corpus.hash, seed=seed),
        model=model.name,
        reference=reference.name,
        text=corpus.description,
        measure=measure,
        base=base,
        reference_base=good_loss,
        n_tokens=corpus.n_predicted,
        differences=tuple(
            _difference(part, model, errors, one, other)
            for part, one, other in zip(parts, restored, worse, strict=True)
        ),
        first_divergence=off[0] if off else None,
        drift=drift,
    )


def _measure(reference: StreamModel, corpus: Corpus) -> tuple[Literal["loss", "divergence"], float]:
    """The loss if the reference predicts better than chance, else the divergence from it."""
    if reference.spec.causal and not corpus.random:
        (whole,) = transplant(reference, [{}], corpus, measured_by="loss", towards=reference)
        if whole.after < _BETTER_THAN_CHANCE * math.log(reference.spec.d_vocab or 2):
            return "loss", whole.after
    return "divergence", 0.0


def _difference(
    part: ChangedPart, model: StreamModel, errors: np.ndarray, one: Effect, other: Effect
) -> Difference:
    own = [
        float(error)
        for write, error in zip(model.spec.writes, errors, strict=True)
        if write.layer == part.layer
    ]
    return Difference(
        layer=part.layer,
        write=part.write,
        tensors=part.names,
        weight_change=part.weight_change,
        own_error=max(own, default=math.nan),
        restored=one.value,
        restored_ci=one.ci,
        transplanted=other.value,
        transplanted_ci=other.ci,
        after=one.after,
    )


def reference_findings(result: CompareResult, active: frozenset[str]) -> list[Finding]:
    """RS601 for blocks that the reference's weights make better, RS602 for the others."""
    findings = [_finding(item, result) for item in result.differences]
    return sorted(
        (finding for finding in findings if finding.code in active),
        key=lambda finding: (finding.code, finding.evidence[0].value),
    )


def _finding(item: Difference, result: CompareResult) -> Finding:
    helps = item.restored < -HARM_NATS and item.restored_ci[1] < 0
    revives = not math.isfinite(result.base) and math.isfinite(item.after)
    rule = RULES["RS601" if helps or revives else "RS602"]
    place = "what lies outside of blocks" if item.layer is None else f"layer {item.layer}"
    change = (
        f"lowers the {result.measure} by {-item.restored:.3g} nats per token"
        if math.isfinite(item.restored)
        else f"brings the {result.measure} back to {item.after:.3g} nats per token"
    )
    statement = (
        f"{place} differs from {result.reference} in {len(item.tensors)} tensors (first "
        f"{item.tensors[0]}); putting the reference's back "
        + (change if helps or revives else "does not help")
    )
    return Finding(
        code=rule.code,
        status="confirmed",
        severity=rule.severity,
        layer=item.layer,
        write=item.write,
        site=None if item.write is None else f"blocks.{item.layer}.hook_{item.write}_out",
        statement=statement,
        evidence=(
            Evidence(
                name=f"change of the {result.measure} with the reference's weights, nats per token",
                value=item.restored,
                threshold=-HARM_NATS,
                ci=item.restored_ci,
            ),
            Evidence(
                name=f"change of the reference's {result.measure} with these weights",
                value=item.transplanted,
                threshold=None,
                ci=item.transplanted_ci,
            ),
            plain("error of its writes on the reference's stream, over their norm", item.own_error),
            plain("|weights - reference| / |reference|", item.weight_change),
        ),
        remedy=rule.fix,
    )
