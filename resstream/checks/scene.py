"""What is known about a model when rules are asked: readings, estimates, and its weights."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from resstream.checks.experiments import Lab
from resstream.checks.readings import Readings
from resstream.checks.weights import WeightTable
from resstream.stream.model import StreamModel
from resstream.stream.spec import WriteSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Everything that rules look at."""

    model: StreamModel
    readings: Readings
    estimates: Float[np.ndarray, " write"]
    """First-order effect of taking each write away, nats per token; NaN where there is no loss."""
    screened: Float[np.ndarray, " write"]
    """Exact effect of the same on a few tokens; NaN where it was not measured."""
    weights: WeightTable
    lab: Lab
    """For rules that have to search among many changes."""
    entropies: Mapping[int, Float[np.ndarray, " head"]] = field(default_factory=dict)
    """By layer: entropy of each head over that of attending evenly; empty if not read."""
    first_shares: Mapping[int, Float[np.ndarray, " head"]] = field(default_factory=dict)
    """By layer: share of each head's attention that goes to the first token."""

    @property
    def informative(self) -> bool:
        """True if the loss says something about the model."""
        return self.lab.informative

    @property
    def writes(self) -> tuple[WriteSpec, ...]:
        """The writes of the model, in order of execution."""
        return self.readings.writes
