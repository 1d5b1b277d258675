"""RS001: where does the first value that is not finite come from?"""

import math

import numpy as np

from resstream.checks.proof import plain
from resstream.checks.readings import Readings
from resstream.checks.report import Evidence, Finding
from resstream.checks.rule import Rule
from resstream.checks.weights import MatrixReading, WeightTable
from resstream.recording.result import Culprit

_GROWN = 1e3

RULE = Rule(
    code="RS001",
    name="not finite",
    stage="input",
    severity="error",
    what="NaN or infinity in the weights, in a write, in the stream or in the logits.",
    why="Everything that reads the stream behind the first such value is lost, so that the output "
    "says nothing about where it began.",
    detection="The stream is watched write by write in the order of execution; the first site, "
    "token and channel are named, and how large the writes before it had become. Weights are "
    "looked at as well, with or without a text. It is a fact and needs no experiment.",
    traps="A mask of minus infinity inside attention is ordinary and never reaches the stream. "
    "Values that overflow only in float16 are found only if the check runs in float16 (--dtype).",
    fix="look for NaN or infinity in this layer's weights and restore them; in training, "
    "keep the stream in float32 and clip gradients",
    source="Micikevicius et al. (2018), Mixed Precision Training.",
    example="resstream inject demo --fault nan --layer 2 --write attn --out broken\n"
    "resstream check broken",
)


def in_readout() -> Finding:
    """The stream is finite to the end, and the logits are not."""
    return _finding(
        "the logits hold NaN though the stream is finite to the end: the readout makes them",
        math.nan,
        remedy="look for NaN or infinity in the final norm and the unembedding and restore them",
    )


def in_stream(culprit: Culprit, readings: Readings) -> Finding:
    """The first value of the stream or of a write that is not finite, and the growth before it."""
    index, growth = _growth(culprit, readings)
    before = (
        f"; already {readings.writes[index].label} before it writes {growth:.2g} times as much as "
        "the writes before that"
        if growth > _GROWN
        else ""
    )
    return _finding(
        f"{culprit.site} is the first value that is not finite: {culprit.value} in sequence "
        f"{culprit.sequence}, token {culprit.token}, channel {culprit.channel}; everything "
        f"that reads the stream after it is lost{before}",
        culprit.value,
        plain("largest growth before it: write norm over the median of the writes before", growth),
        layer=culprit.layer,
        write=culprit.write,
        site=culprit.site,
    )


def _growth(culprit: Culprit, readings: Readings) -> tuple[int, float]:
    """Which write before the culprit is largest beside those before it, and how many times."""
    norms = [
        float(norm)
        for write, norm in zip(readings.writes, readings.write_norm, strict=True)
        if write.layer < culprit.layer or (write.layer == culprit.layer and culprit.write is None)
    ]
    best, growth = 0, math.nan
    for index in range(2, len(norms)):
        usual = float(np.median(norms[:index]))
        if usual > 0 and not norms[index] / usual <= growth:
            best, growth = index, norms[index] / usual
    return best, growth


def in_weights(table: WeightTable) -> list[Finding]:
    """One finding for each tensor that holds such values."""
    return [_of_tensor(reading) for reading in table.readings if reading.n_bad]


def _of_tensor(reading: MatrixReading) -> Finding:
    return _finding(
        f"{reading.name} holds {reading.n_bad} values that are not finite",
        math.nan,
        layer=reading.layer,
        write=reading.write,
    )


def _finding(
    statement: str,
    value: float,
    *evidence: Evidence,
    layer: int | None = None,
    write: str | None = None,
    site: str | None = None,
    remedy: str = RULE.fix,
) -> Finding:
    return Finding(
        code=RULE.code,
        status="confirmed",
        severity=RULE.severity,
        layer=layer,
        write=write,
        site=site,
        statement=statement,
        evidence=(plain("first value that is not finite", value), *evidence),
        remedy=remedy,
    )
