"""One of every public result, made on a small random model."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

import resstream as rs
from resstream.stream.result import Result
from tests.analysis import families


@cache
def model() -> rs.StreamModel:
    """Small and random, its readout made decided so that a pair of prompts differs."""
    module = families.make("llama")
    with torch.no_grad():
        module.get_parameter("lm_head.weight").mul_(20)
    return rs.load(module)


def tokens() -> torch.Tensor:
    return families.tokens(6, 10)


def pairs() -> list[dict[str, Any]]:
    clean, corrupted = families.tokens(1, 6)[0].tolist(), families.tokens(1, 6, seed=5)[0].tolist()
    return [{"clean": clean, "corrupted": corrupted, "answer": 5, "wrong": 8}]


def trained() -> rs.TunedLensResult:
    config = rs.TunedLensConfig(n_tokens=40, batch_tokens=20)
    return rs.tuned_lens(model(), tokens(), config=config)[1]


def compared() -> Result:
    """The model against one of which a write was changed."""
    from resstream.checks.comparison import compare

    other = rs.load(families.make("llama"))
    rs.inject(other, "scale", layer=1, write="mlp", severity=3.0)
    return compare(other, model(), tokens())


MAKERS: dict[str, Callable[[], Result]] = {
    "resstream.ablate/1": lambda: rs.ablate(model(), tokens()),
    "resstream.attention/1": lambda: rs.attention(model(), tokens()),
    "resstream.attribute/1": lambda: rs.direct_logit_attribution(model(), tokens(), answer=5),
    "resstream.attribution_patch/1": lambda: rs.attribution_patch(
        model(), pairs(), site="resid_pre"
    ),
    "resstream.check/1": lambda: rs.check(model(), tokens()),
    "resstream.compare/1": compared,
    "resstream.gradients/1": lambda: rs.gradients(model(), tokens()),
    "resstream.lens_profile/1": lambda: rs.lens_profile(model(), tokens()),
    "resstream.logit_lens/1": lambda: rs.logit_lens(model(), tokens(), targets=[5]),
    "resstream.patch/1": lambda: rs.patch(model(), pairs(), site="resid_pre"),
    "resstream.path_patch/1": lambda: rs.path_patch(model(), pairs()),
    "resstream.precision/1": lambda: rs.precision_drift(model(), tokens()),
    "resstream.ranks/1": lambda: rs.ranks(model(), tokens(), n_tokens=24),
    "resstream.record/1": lambda: rs.record(model(), tokens()),
    "resstream.similarity/1": lambda: rs.similarity(model(), tokens(), n_tokens=24),
    "resstream.tuned_lens/1": trained,
}
