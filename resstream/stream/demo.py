"""The embedded model, and two damaged versions of it that are made when they are loaded."""

from importlib.resources import as_file, files
from typing import Any, NamedTuple

from torch import nn

from resstream.errors import CheckpointError


class _Edit(NamedTuple):
    fault: str
    layer: int
    write: str
    severity: float


EDITS: dict[str, tuple[_Edit, ...]] = {
    "demo": (),
    "demo:collapsed": (_Edit("scale", 3, "mlp", 1e-4),),
    "demo:polluted": (_Edit("scale", 4, "mlp", 24.0),),
}
"""What is done to the demo: the output matrix of one write is multiplied by a constant."""


def load_demo(name: str) -> tuple[nn.Module, Any]:
    """The embedded model and its tokenizer.

    Raises:
        CheckpointError: `name` is none of the demos.
    """
    if name not in EDITS:
        raise CheckpointError(f"unknown demo {name!r}; there are {', '.join(EDITS)}")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from resstream.nn.pretrained import register_auto_classes
    from resstream.stream.faults import inject
    from resstream.stream.model import StreamModel

    register_auto_classes()
    with as_file(files("resstream.stream") / "assets" / "demo") as place:
        module = AutoModelForCausalLM.from_pretrained(place, dtype="float32")
        tokenizer = AutoTokenizer.from_pretrained(place)
    for edit in EDITS[name]:
        model = StreamModel(module, name=name)
        inject(model, edit.fault, layer=edit.layer, write=edit.write, severity=edit.severity)
    return module, tokenizer
