"""RS205: a block behind which the logit lens gets worse, and stays so to the end."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float

from resstream.analysis.intervals import holm
from resstream.analysis.losses import stream_losses
from resstream.analysis.points import run_streams, stream_points
from resstream.checks.experiments import Lab, Outcome, Trial
from resstream.checks.proof import HARM_NATS, effect_evidence, gain_of, plain
from resstream.checks.report import Evidence, Finding, Status
from resstream.checks.rule import Rule
from resstream.stream.spec import WriteSpec
from resstream.stream.texts import Corpus
from resstream.sweep.variants import zero

UNUSUAL_MADS = 3.0
"""A rise must stand out from the changes of all blocks by this many robust deviations."""
LEAST_NATS = 0.05
"""A rise, and what of it is left at the best later point, must be at least this."""
_SEQUENCES, _TOKENS = 4, 25
"""Sample that the lens reads, one readout a block."""
_FIRST_TOKENS, _NEAR_NATS = 8, 0.3
"""A smaller sample that is read first: in a healthy model no depth comes that near to the end."""
_BETTER_THAN_CHANCE = 0.9
_MAD_TO_STD = 1.4826
_ALPHA = 0.05

RULE = Rule(
    code="RS205",
    name="lens never recovers",
    stage="stream",
    severity="error",
    what="Read before this block, the stream predicts better than at any later point, the model's "
    "own output among them.",
    why="The block ruins the stream, and nothing behind it repairs that: all later layers work on "
    "less than what was there before.",
    detection="The model's final norm and head read the stream after every block, on a sample of "
    f"tokens (without first ones). Suspect where the loss rises by more than {UNUSUAL_MADS:g} MAD "
    f"of the changes of all blocks and never comes back within {LEAST_NATS:g} nats. Then, on the "
    "whole text: taking away every write from there on must lower the loss (interval below 0), and "
    "so must taking away a write of the block, or both (Holm over all writes); without the latter "
    "it stays suspect. Findings that name the block already are not repeated.",
    traps="The lens is bad at early depths of healthy models, often worse than chance, and jumps "
    "at the last blocks: only being worse than an *earlier* reading counts, which a healthy model "
    "ends below. An untrained model is at chance everywhere, and models with closed gates do not "
    "change: neither has a reading that says something.",
    fix="restore the block from an earlier checkpoint, or remove the write",
    source="nostalgebraist (2020), Interpreting GPT: the Logit Lens; Belrose et al. (2023), "
    "arXiv:2303.08112, for losses over depth.",
    example="resstream inject demo --fault sign_flip --layer 6 --write mlp --out broken\n"
    "resstream check broken --select RS205",
)


@dataclass(frozen=True, slots=True)
class Descent:
    """Where the lens turns for the worse."""

    layer: int
    before: float
    """Loss of the stream read before the block, nats per token of the sample."""
    best_after: float
    """Lowest loss of all later points."""
    rise: float
    mads: float
    """The rise over the robust deviation of the changes of all blocks."""


def look(lab: Lab, known: Sequence[Finding]) -> list[Finding]:
    """The block behind which the lens never recovers, tried on the whole text.

    Args:
        lab: With the repairs of what was found before in force.
        known: Findings so far; a block that one of them names is explained.
    """
    if not lab.readable:
        return []
    glance = lens_losses(lab, _FIRST_TOKENS)
    if not np.isfinite(glance).all() or glance[:-1].min() > glance[-1] + _NEAR_NATS:
        return []
    found = steepest(lens_losses(lab), chance=math.log(lab.model.spec.d_vocab or 2))
    if found is None or any(f.status == "confirmed" and f.layer == found.layer for f in known):
        return []
    writes = lab.model.spec.writes
    behind = [write for write in writes if write.layer >= found.layer]
    own = [write for write in behind if write.layer == found.layer]
    stop = _without(behind, f"zero every write from L{found.layer} on")
    if not lab.informative:
        lab.glance([stop])  # a fault may have cost the model all it knew
    if not lab.informative:
        return []
    return _judge(found, lab.run([stop, *_parts(own)]), own, len(writes))


def lens_losses(lab: Lab, n_tokens: int = _TOKENS) -> Float[np.ndarray, " depth"]:
    """Loss of the stream read after the embedding and after every block, nats per token.

    The last one is the model's own, with the standing repairs.

    Args:
        lab: The model and its text.
        n_tokens: How many of each sequence are read.
    """
    points = stream_points(lab.model.spec, mid=False)
    few = lab.corpus.head(_SEQUENCES)
    short = tuple(sequence[:n_tokens] for sequence in few.sequences if len(sequence) > 2)
    sample = Corpus(sequences=short, documents=few.documents, description=few.description)
    sums, count = np.zeros(len(points)), 0
    with lab.repaired():
        for batch in sample.batches():
            streams, _ = run_streams(lab.model, batch.tokens, points)
            together = torch.cat(list(streams))  # the head's matrix is read once for many rows
            losses = stream_losses(lab.model, together, batch.tokens.repeat(len(points), 1))
            by_depth = losses.unflatten(0, (len(points), -1))[..., 1:]  # the first token is a sink
            sums += by_depth.double().sum((1, 2)).cpu().numpy()
            count += by_depth[0].numel()
    return sums / count if count else np.full(len(points), np.nan)


def steepest(losses: Float[np.ndarray, " depth"], *, chance: float) -> Descent | None:
    """The block with the largest loss that is never regained; None if there is none.

    Args:
        losses: After the embedding and after every block, nats per token.
        chance: Loss of a model that knows nothing, log(d_vocab).
    """
    if len(losses) < 3 or not np.isfinite(losses).all():
        return None
    rises = np.diff(losses)
    best_after = np.minimum.accumulate(losses[::-1])[::-1][1:]
    centre = float(np.median(rises))
    spread = max(_MAD_TO_STD * float(np.median(np.abs(rises - centre))), LEAST_NATS / UNUSUAL_MADS)
    mads = (rises - centre) / spread
    lasting = best_after - losses[:-1]
    odd = (mads > UNUSUAL_MADS) & (np.minimum(rises, lasting) > LEAST_NATS)
    odd &= losses[:-1] < _BETTER_THAN_CHANCE * chance
    if not odd.any():
        return None
    layer = int(np.argmax(np.where(odd, lasting, -np.inf)))
    return Descent(
        layer=layer,
        before=float(losses[layer]),
        best_after=float(best_after[layer]),
        rise=float(rises[layer]),
        mads=float(mads[layer]),
    )


def _without(writes: Sequence[WriteSpec], label: str) -> Trial:
    return Trial(write=writes[0], also=tuple(writes[1:]), label=label, change=zero)


def _parts(own: Sequence[WriteSpec]) -> list[Trial]:
    """Each write of the block taken away, and the whole block."""
    alone = [_without([write], "zero") for write in own]
    return alone if len(own) == 1 else [*alone, _without(own, "zero the block")]


def _judge(
    found: Descent, outcomes: Sequence[Outcome], own: Sequence[WriteSpec], n_writes: int
) -> list[Finding]:
    stop, *parts = outcomes
    if not _helps(stop):
        return []
    p_values = np.ones(max(n_writes, len(parts)))
    p_values[: len(parts)] = [outcome.p_better for outcome in parts]
    corrected = holm(p_values)[: len(parts)]
    proved = [o for o, p in zip(parts, corrected, strict=True) if _helps(o) and p < _ALPHA]
    evidence = (*_passive(found), effect_evidence(stop, -HARM_NATS))
    before = (
        f"read before L{found.layer} the stream predicts better ({found.before:.3g} nats) than at "
        f"any later point ({found.best_after:.3g})"
    )
    if not proved:
        return [_finding(found, None, "suspect", before, evidence)]
    best = min(proved, key=lambda outcome: outcome.effect)
    is_block = bool(best.trial.also) or own[0].name == "block"
    write = None if is_block else best.trial.write
    evidence = (*evidence, effect_evidence(best, -HARM_NATS))
    return [_finding(found, write, "confirmed", f"{before}; {gain_of(best)}", evidence)]


def _helps(outcome: Outcome) -> bool:
    return outcome.high < 0 and outcome.effect < -HARM_NATS


def _passive(found: Descent) -> tuple[Evidence, ...]:
    return (
        plain("rise of the lens's loss over the block, in MAD of all blocks", found.mads,
              UNUSUAL_MADS),
        plain("rise of the lens's loss over the block, nats per token", found.rise, LEAST_NATS),
        plain("loss before the block, nats per token", found.before),
        plain("lowest loss at a later point, nats per token", found.best_after,
              found.before + LEAST_NATS),
    )  # fmt: skip


def _finding(
    found: Descent,
    write: WriteSpec | None,
    status: Status,
    statement: str,
    evidence: tuple[Evidence, ...],
) -> Finding:
    return Finding(
        code=RULE.code,
        status=status,
        severity=RULE.severity,
        layer=found.layer,
        write=None if write is None else write.name,
        site=None if write is None else write.site,
        statement=statement,
        evidence=evidence,
        remedy=RULE.fix,
    )
