"""RS000: is there enough text for a verdict, and does the model know its like?"""

from resstream.checks.experiments import Lab
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
    what="The text is too short, or too strange to the model, for verdicts that rest on the loss.",
    why="An interval over two sequences says nothing, and neither does the loss of a model that "
    "guesses. Silence after such a text would read like a clean bill of health.",
    detection=f"Fewer than {MIN_TOKENS} predicted tokens, or fewer than {MIN_SEQUENCES} "
    "independent sequences; or a loss no better than chance (0.9 of log of the vocabulary), and "
    "nothing confirmed that would explain it. The check runs all the same, and what it finds "
    "stands beside this.",
    traps="It is a statement about the text, not about the model, and never fails a run; a model "
    "that was not trained yet is at chance on any text.",
    fix="give more text, or text like what the model was trained on (--text, --sequences)",
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
    return [RULE.of_model(statement, status="abstained")]


def strange(lab: Lab) -> list[Finding]:
    """The finding, if the model reads a text that it can't predict."""
    if not lab.readable or lab.informative or lab.model.tokenizer is None:
        return []
    statement = (
        f"the model predicts this text no better than chance ({lab.base_loss:.3g} nats per token, "
        f"log of the vocabulary {lab.chance:.3g}), so that no verdict can rest on its loss"
    )
    return [RULE.of_model(statement, status="abstained")]
