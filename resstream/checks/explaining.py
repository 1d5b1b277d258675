"""What does a rule mean?  The same text for the command line and for the documentation."""

from resstream.checks.registry import RULES
from resstream.checks.rule import Rule

_SECTIONS = (
    ("What", "what"),
    ("Why it matters", "why"),
    ("How it is detected", "detection"),
    ("False-alarm traps", "traps"),
    ("What to do", "fix"),
    ("Source", "source"),
)
STAGES = {
    "input": "what was read",
    "pollution": "confirmed if a repair lowers the loss",
    "collapse": "confirmed if taking it away changes nothing",
    "stream": "several writes together",
    "weights": "a fact about weights; needs no text",
    "config": "read in the configuration",
    "reference": "needs --reference",
}


def explain(rule: Rule) -> str:
    """All there is to know about a rule, as Markdown."""
    head = (
        f"# {rule.code}: {rule.name}\n\n"
        f"Severity: {rule.severity}. Kind of evidence: {STAGES[rule.stage]}.\n"
    )
    parts = [f"## {title}\n\n{getattr(rule, field)}\n" for title, field in _SECTIONS]
    example = "## See it\n\n" + "\n".join(f"    {line}" for line in rule.example.split("\n")) + "\n"
    return "\n".join([head, *parts, example])


def index() -> str:
    """The page that lists all rules, as Markdown."""
    rows = [
        f"| [{rule.code}]({rule.code}.md) | {rule.name} | {rule.severity} | {STAGES[rule.stage]} |"
        for rule in RULES.values()
    ]
    head = [
        "# Rules of `resstream check`",
        "",
        "These pages are made from the rules themselves:",
        "`python -m resstream.checks.pages docs/rules`.",
        "Codes are stable. `resstream rules` lists them, `resstream explain RS102` prints a page,",
        "`--select` and `--ignore` take codes or their beginnings (`RS2`).",
        "",
        "| code | name | severity | evidence |",
        "|---|---|---|---|",
    ]
    return "\n".join([*head, *rows]) + "\n"
