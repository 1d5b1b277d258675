"""RS000: is there enough text for a verdict?"""

from resstream.checks.report import Finding
from resstream.checks.rule import Rule
from resstream.stream.texts import Corpus

MIN_SEQUENCES = 4
MIN_TOKENS = 400

RULE = Rule(
    code="RS000",
    name="too little text",
    stage="input",
    severity="info",
    what="The text is too short for verdicts that rest on the loss.",
    why="An interval over two sequences says nothing. Silence after a short text would read like "
    "a clean bill of health.",
    detection=f"Fewer than {MIN_TOKENS} predicted tokens, or fewer than {MIN_SEQUENCES} "
    "independent sequences. The check runs all the same, and what it finds stands beside this.",
    traps="None: it is a statement about the text, not about the model. It never fails a run.",
    fix="give more text (--text, --sequences)",
    source="Intervals are bootstrapped over documents: Efron and Tibshirani (1993).",
    example="resstream check demo --sequences 2",
)


def look(corpus: Corpus) -> list[Finding]:
    """The finding, if the text is too short."""
    have, sequences = corpus.n_predicted, len(set(corpus.documents))
    if have >= MIN_TOKENS and sequences >= MIN_SEQUENCES:
        return []
    statement = (
        f"the text is too short for verdicts: {have} predicted tokens in {sequences} "
        f"independent sequences; at least {MIN_TOKENS} in {MIN_SEQUENCES} are needed"
    )
    return [
        Finding(
            code=RULE.code,
            status="abstained",
            severity=RULE.severity,
            layer=None,
            write=None,
            site=None,
            statement=statement,
            evidence=(),
            remedy=RULE.fix,
        )
    ]
