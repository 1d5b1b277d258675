"""`check`: the public face of the linter; joins the rules, the reference, and the remedies."""

from collections.abc import Collection, Sequence
from contextlib import ExitStack

import numpy as np
from jaxtyping import Float

from resstream.checks.comparison import compare, reference_findings
from resstream.checks.engine import Case, Progress
from resstream.checks.experiments import Lab
from resstream.checks.readings import Readings
from resstream.checks.registry import RULES, active_codes, require_answerable
from resstream.checks.remedies import Candidate, Clinic, with_best_fix
from resstream.checks.repairs import Weights
from resstream.checks.report import (
    SEVERITIES,
    CheckReport,
    Finding,
    Verdict,
    WriteReading,
)
from resstream.errors import UnsupportedModelError
from resstream.stream.model import StreamModel
from resstream.stream.provenance import provenance_of
from resstream.stream.texts import Corpus, Texts, read_corpus


def check(  # noqa: PLR0913  (all but the first two are options)
    model: StreamModel,
    texts: Texts | Corpus = None,
    *,
    reference: StreamModel | None = None,
    select: str | Collection[str] | None = None,
    ignore: str | Collection[str] | None = None,
    remedies: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> CheckReport:
    """Look for writes that are collapsed or pollute the stream, and prove what is found.

    Nothing is changed in the model; `check_and_fix` also gives the weights that repair it.

    Args:
        model: A model of tokens with logits.
        texts: What it reads (see `resstream.stream.texts.read_corpus`), or a corpus made of it.
        reference: A good checkpoint of the same shape: an earlier one, or the unquantised original.
        select: Codes (or beginnings of codes) of the rules that are used; all if None.
        ignore: Codes of rules that are left out.
        remedies: Try the fixes that apply to what was confirmed, in memory.
        seed: Of the bootstrap.
        progress: Called after each step with the steps done and their total.

    Raises:
        UnsupportedModelError: The model has no logits over tokens.
        ConfigError: An unknown code, or a reference of another shape.
        TextError: The text can't be used.
    """
    report, _ = check_and_fix(
        model,
        texts,
        reference=reference,
        select=select,
        ignore=ignore,
        remedies=remedies,
        seed=seed,
        progress=progress,
    )
    return report


def check_and_fix(  # noqa: PLR0913
    model: StreamModel,
    texts: Texts | Corpus = None,
    *,
    reference: StreamModel | None = None,
    select: str | Collection[str] | None = None,
    ignore: str | Collection[str] | None = None,
    remedies: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[CheckReport, Weights]:
    """`check`, and the parameters that the best fixes of all findings give together.

    Takes and raises what `check` does; see `resstream.checks.remedies.export_fix` for the weights.
    """
    active = active_codes(select, ignore)
    if reference is None:
        alone = [code for code, rule in RULES.items() if rule.stage != "reference"]
        require_answerable(active, alone, "can be asked without a reference")
    if model.spec.d_vocab is None:
        raise UnsupportedModelError(
            f"check needs a model with logits over tokens; {model.name} ({model.spec.family}) "
            "has none"
        )
    lab = Lab(model, read_corpus(model, texts, seed=seed), seed)
    with ExitStack() as dropout_off:
        for each in (model, reference):
            if each is not None:
                dropout_off.enter_context(each.evaluating())
        return _examine(lab, reference, active, progress or (lambda *_: None), remedies=remedies)


def _examine(
    lab: Lab,
    reference: StreamModel | None,
    active: frozenset[str],
    progress: Progress,
    *,
    remedies: bool,
) -> tuple[CheckReport, Weights]:
    model, corpus, seed = lab.model, lab.corpus, lab.seed
    case = Case(model=model, corpus=corpus, lab=lab, active=active, progress=progress)
    findings = case.solve()
    if reference is not None:
        compared = compare(model, reference, corpus, seed=seed)
        findings = reference_findings(compared, active) + findings
    findings = rank(findings)
    clinic = Clinic(
        model=model,
        corpus=corpus,
        table=case.weights,
        known={
            key: Candidate(label=trial.label, weights=dict(trial.weights))
            for key, trial in case.repairs.items()
        },
        reference=reference,
    )
    trials = clinic.treat(findings) if remedies and lab.readable else []
    report = CheckReport(
        provenance=provenance_of(model, corpus.description, corpus.hash, seed=seed),
        model=model.name,
        text=corpus.description,
        verdict=verdict_of(findings),
        findings=tuple(with_best_fix(findings, trials)),
        base_loss=lab.base_loss,
        writes=_rows(case.readings, case.estimates),
        experiments=tuple(outcome.experiment for outcome in lab.done),
        remedies=tuple(trials),
    )
    return report, clinic.weights


def rank(findings: Sequence[Finding]) -> list[Finding]:
    """Most serious first; among equals the one whose repair helped most stays first."""
    order = {"confirmed": 0, "suspect": 1, "abstained": 2}
    return sorted(findings, key=lambda f: (order[f.status], SEVERITIES.index(f.severity)))


def verdict_of(findings: Sequence[Finding]) -> Verdict:
    """Remarks (info) that are confirmed do not make a model unhealthy."""
    if any(f.status == "confirmed" and f.severity != "info" for f in findings):
        return "findings"
    return "inconclusive" if any(f.status != "confirmed" for f in findings) else "healthy"


def _rows(
    readings: Readings | None, estimates: Float[np.ndarray, " write"]
) -> tuple[WriteReading, ...]:
    if readings is None:
        return ()
    return tuple(
        WriteReading(
            layer=write.layer,
            write=write.name,
            write_norm=float(readings.write_norm[i]),
            relative_norm=float(readings.relative_norm[i]),
            cosine=float(readings.cosine[i]),
            channel_share=float(readings.channel_share[i]),
            expected_norm=float(readings.expected_norm[i]),
            z=float(readings.norm_z[i]),
            estimated_effect=float(estimates[i]),
        )
        for i, write in enumerate(readings.writes)
    )
