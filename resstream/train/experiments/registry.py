"""Which experiments are there?  Every module of `claims` registers its own."""

import pkgutil
from difflib import get_close_matches
from importlib import import_module

from resstream.errors import ConfigError
from resstream.train.experiments import claims
from resstream.train.experiments.experiment import Experiment

_REGISTERED: dict[str, Experiment] = {}
"""Name -> experiment; an open set."""


def register(experiment: Experiment) -> Experiment:
    """Make an experiment known.

    Raises:
        ConfigError: There is another of this name.
    """
    known = _REGISTERED.get(experiment.name)
    if known is not None and known.claim != experiment.claim:
        raise ConfigError(f"there are two experiments of the name {experiment.name!r}")
    _REGISTERED[experiment.name] = experiment
    return experiment


def experiments() -> tuple[Experiment, ...]:
    """All of them, by the first row of the mission that they belong to."""
    for module in pkgutil.iter_modules(claims.__path__):
        import_module(f"{claims.__name__}.{module.name}")
    return tuple(sorted(_REGISTERED.values(), key=lambda item: (item.rows[0], item.name)))


def find_experiments(names: list[str]) -> tuple[Experiment, ...]:
    """The experiments of these names, in this order, each once.

    Raises:
        ConfigError: A name is not known; the message has the nearest ones.
    """
    known = {item.name: item for item in experiments()}
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=3, cutoff=0.4)
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            raise ConfigError(
                f"unknown experiment {name!r}{hint} (`resstream experiment --list` names all)"
            )
    return tuple(known[name] for name in dict.fromkeys(names))
