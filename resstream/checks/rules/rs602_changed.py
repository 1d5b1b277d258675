"""RS602: a layer that differs from the reference without harm."""

from resstream.checks.rule import Rule

RULE = Rule(
    code="RS602",
    name="changed, not worse",
    stage="reference",
    severity="info",
    what="Weights of a layer differ from the reference, and putting those back does not help.",
    why="Worth knowing where no change was expected (a copy, a conversion, a quantised layer).",
    detection="Bit-by-bit comparison; the transplant's interval does not lie below 0.",
    traps="Ordinary between checkpoints of one run. It never fails a run by default.",
    fix="nothing, if the change was meant; else restore the layer from the reference",
    source="Zhang and Nanda (2023), arXiv:2309.16042; see RS601.",
    example="resstream inject demo --fault scale --severity 0.99 --layer 2 --write mlp "
    "--out tuned\nresstream check tuned --reference demo",
)
