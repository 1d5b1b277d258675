"""RS601: a layer that differs from the reference, and is worse for it."""

from resstream.checks.rule import Rule

RULE = Rule(
    code="RS601",
    name="worse than the reference",
    stage="reference",
    severity="error",
    what="Weights of a layer differ from the reference, and putting the reference's layer back "
    "makes the model better.",
    why="It is the shortest way to a culprit there is: same shape, same text, one layer changed.",
    detection="Every tensor is compared bit by bit. Each changed layer is run on the reference's "
    "own stream, which shows its own error and not what it inherits, and is transplanted both "
    "ways: the reference's layer into this model, and this model's into the reference. Confirmed "
    "if the first lowers the loss (or the divergence from the reference, where there is no loss) "
    "with the interval below 0.",
    traps="A fine-tuned checkpoint differs everywhere and is not broken: a layer that is as "
    "good as the reference's is a remark (RS602). Effects of several changed layers do not add up.",
    fix="restore the layer from the reference",
    source="Zhang and Nanda (2023), Towards Best Practices of Activation Patching, "
    "arXiv:2309.16042; identity I6: with the fault in one write, patching it restores the run.",
    example="resstream check demo:polluted --reference demo",
)
