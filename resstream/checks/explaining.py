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
    return "\n".join([head, *parts, f"## See it\n\n```console\n{_as_typed(rule.example)}```\n"])


def _as_typed(example: str) -> str:
    """Commands behind a prompt; the lines of a file that is typed in behind a second one."""
    lines: list[str] = []
    end: str | None = None
    for line in example.split("\n"):
        lines.append(f"{'$' if end is None else '>'} {line}".rstrip())
        if end is None and "<<'" in line:
            end = line.partition("<<'")[2].partition("'")[0]
        elif line == end:
            end = None
    return "".join(f"{line}\n" for line in lines)


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
        "`python -m resstream.checks.pages docs/rules`; `python docs/outputs.py docs/rules/*.md`",
        "runs their examples.",
        "Codes are stable. `resstream rules` lists them, `resstream explain RS102` prints a page,",
        "`--select` and `--ignore` take codes or their beginnings (`RS2`).",
        "",
        "| code | name | severity | evidence |",
        "|---|---|---|---|",
    ]
    return "\n".join([*head, *rows]) + "\n"
