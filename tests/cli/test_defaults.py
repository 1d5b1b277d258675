"""The defaults of the command line are the library's, though they are written twice."""

import inspect
from collections.abc import Callable
from typing import Any, get_args, get_type_hints

import pytest
import typer.main

import resstream as rs
from resstream_cli.ablate import ablate
from resstream_cli.app import app
from resstream_cli.attribute import attribute
from resstream_cli.bisect import bisect
from resstream_cli.check import Severity, check
from resstream_cli.compare import compare
from resstream_cli.experiment import experiment
from resstream_cli.explain import explain
from resstream_cli.inject import Fault, inject
from resstream_cli.inspect import inspect as inspect_verb
from resstream_cli.lens import lens
from resstream_cli.patch import patch
from resstream_cli.profile import profile
from resstream_cli.record import record
from resstream_cli.report import report
from resstream_cli.rules import rules
from resstream_cli.similarity import similarity
from resstream_cli.train import train

VERBS: dict[str, Callable[..., None]] = {
    "ablate": ablate,
    "attribute": attribute,
    "bisect": bisect,
    "check": check,
    "experiment": experiment,
    "compare": compare,
    "explain": explain,
    "inject": inject,
    "inspect": inspect_verb,
    "lens": lens,
    "patch": patch,
    "profile": profile,
    "record": record,
    "report": report,
    "rules": rules,
    "similarity": similarity,
    "train": train,
}
OWN = {
    # What the library has no parameter for, or calls otherwise.
    "ablations", "as_json", "baseline", "checkpoints", "code", "export_fix", "static",
    "write_baseline", "fail_on", "group", "html", "layers", "model", "out",
    # Bounded here: a file of gigabytes must not run for days because nobody gave a number.
    "sequences",
    # A pair may be spelled out, and a sweep planned or gone on with.
    "answer", "clean", "corrupted", "pairs", "plan", "resume", "wrong",
    # What is read, and how, has other names or no one function behind it.
    "batch_tokens", "n_tokens", "prompt", "reading", "runs", "target",
    "steps", "train", "tuned",
    # Which experiments, and how much is spent on each.
    "every", "listed", "names", "quick",
}  # fmt: skip


def defaults(function: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters}


def library(verb: str) -> dict[str, Any]:
    """What the library takes on the way of a verb: load, read the text, and the verb itself."""
    from resstream.stream.texts import read_corpus

    found = defaults(rs.load) | defaults(read_corpus)
    found["text"] = found["texts"]
    return found | {
        name: value for each in functions(verb) for name, value in defaults(each).items()
    }


def functions(verb: str) -> list[Callable[..., Any]]:
    """What does the work of a verb."""
    from resstream.analysis.direct_logit_attribution import direct_logit_attribution
    from resstream.analysis.lens_profile import lens_profile
    from resstream.analysis.logit_lens import logit_lens
    from resstream.analysis.ranks import ranks
    from resstream.analysis.similarity import similarity as compare
    from resstream.checks.comparison import compare as compare_checkpoints
    from resstream.train.experiments.running import run_experiments
    from resstream.train.training import run_training

    named: dict[str, list[Callable[..., Any]]] = {
        "attribute": [direct_logit_attribution],
        "bisect": [],
        "compare": [compare_checkpoints],
        "experiment": [run_experiments],
        "explain": [],
        "rules": [],
        "inspect": [],
        "lens": [logit_lens, lens_profile],
        "profile": [ranks],
        "report": [],
        "similarity": [compare],
        "train": [run_training],
    }
    return named[verb] if verb in named else [getattr(rs, verb)]


@pytest.mark.parametrize("verb", VERBS)
def test_defaults_agree(verb: str) -> None:
    known = library(verb)
    if verb == "train":  # its options stand for what the configuration says
        known |= dict.fromkeys(("seed", "text", "dtype"))
    for name, default in defaults(VERBS[verb]).items():
        if name not in OWN:
            assert name in known, f"--{name} of {verb} means nothing to the library"
            assert default == known[name], f"--{name} of {verb}"


def test_every_verb_is_tested_here() -> None:
    assert {each.name for each in typer.main.get_command(app).commands.values()} == set(VERBS)  # type: ignore[attr-defined]


def choices(verb: Callable[..., Any], name: str) -> set[Any]:
    (hint, *_) = get_args(get_type_hints(verb, include_extras=True)[name])
    return set(get_args(hint))


def test_choices_are_those_of_the_library() -> None:
    from resstream.analysis import attribution_parts
    from resstream.analysis.ablation import Kind, Level
    from resstream.checks.report import SEVERITIES
    from resstream.stream.faults import FAULTS

    assert choices(ablate, "kind") == set(get_args(Kind))
    assert choices(ablate, "level") <= set(get_args(Level))
    assert choices(attribute, "level") == set(get_args(attribution_parts.Level))
    assert set(get_args(Fault)) == set(FAULTS)
    assert set(get_args(Severity)) == set(SEVERITIES)
