"""How is an experiment run?  Once a seed, on one core, with the numbers gathered and judged."""

import hashlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import numpy as np
import torch

from resstream.errors import ResultError
from resstream.stream.files import write_directory
from resstream.stream.provenance import Provenance, package_versions
from resstream.train.experiments import stacks, tasks
from resstream.train.experiments.experiment import (
    Experiment,
    Key,
    Measured,
    Readings,
    Size,
)
from resstream.train.experiments.report import ExperimentRecord, ExperimentReport

_FULL_SEEDS = 2
"""How many times more seeds a full run has."""
Told = Callable[[str, int, int], None]
"""Hears the name of an experiment, how many are done, and how many there are."""


def run_experiment(
    experiment: Experiment, *, size: Size = "full", seed: int = 0
) -> ExperimentRecord:
    """Run one experiment: measure for every seed, then judge.

    Args:
        experiment: What is tried.
        size: How much is spent.
        seed: Seeds count from here.
    """
    began = monotonic()
    n_seeds = experiment.seeds * (_FULL_SEEDS if size == "full" else 1)
    runs = [_measure(experiment, size, seed + index) for index in range(max(n_seeds, 1))]
    readings = gather(runs, is_drawn=n_seeds > 0)
    judgement = experiment.judge(readings)
    return ExperimentRecord(
        name=experiment.name,
        title=experiment.title,
        claim=experiment.claim,
        source=experiment.source,
        rows=experiment.rows,
        method=experiment.method,
        verdict=judgement.verdict,
        statement=judgement.statement,
        measured=readings.measured,
        chart=experiment.chart,
        size=size,
        seed=seed,
        recipe=recipe_of(experiment),
        seconds=monotonic() - began,
    )


def run_experiments(
    chosen: Sequence[Experiment],
    *,
    size: Size = "full",
    seed: int = 0,
    out: Path | None = None,
    told: Told | None = None,
) -> ExperimentReport:
    """Run experiments one after the other; what `out` already holds is not run again.

    Args:
        chosen: What is tried.
        size: How much is spent on each.
        seed: Seeds count from here.
        out: Where each record is kept as soon as it is there.
        told: Hears of the progress.

    Raises:
        OutputError: `out` can't be written.
    """
    records: list[ExperimentRecord] = []
    for done, experiment in enumerate(chosen):
        if told is not None:
            told(experiment.name, done, len(chosen))
        record = None if out is None else _kept(out, experiment, size, seed)
        if record is None:
            record = run_experiment(experiment, size=size, seed=seed)
            if out is not None:
                _keep(out, record)
        records.append(record)
    return report_of(records)


def report_of(records: Sequence[ExperimentRecord]) -> ExperimentReport:
    """The result that holds these records."""
    recipes = "".join(record.recipe for record in records)
    sizes = ", ".join(sorted({record.size for record in records}))
    provenance = Provenance(
        model="small models made for each experiment; the hash is that of their code",
        model_hash=_digest(recipes),
        text=f"numbers drawn from the seed, and the embedded text ({sizes} size)",
        text_hash="",
        dtype="float32 unless an experiment says otherwise",
        device="cpu",
        seed=records[0].seed if records else 0,
        replay_error=0.0,
        versions=package_versions(),
    )
    return ExperimentReport(provenance=provenance, experiments=tuple(records))


def gather(runs: Sequence[Mapping[Key, float]], *, is_drawn: bool) -> Readings:
    """Median and range over the seeds of every quantity; not-a-number counts as infinite."""
    measured: list[Measured] = []
    for key in dict.fromkeys(key for run in runs for key in run):
        values = np.array([_finite_or_infinite(run[key]) for run in runs if key in run])
        quantity, at = key if isinstance(key, tuple) else (key, None)
        measured.append(
            Measured(
                quantity=quantity,
                at=None if at is None else float(at),
                value=float(np.median(values)),
                low=float(values.min()),
                high=float(values.max()),
                n_seeds=len(values) if is_drawn else 0,
            )
        )
    return Readings(tuple(measured))


def _finite_or_infinite(value: float) -> float:
    """A diverged run ends in NaN or in infinity by chance; either is 'beyond all bounds'."""
    return math.inf if math.isnan(value) else float(value)


def recipe_of(experiment: Experiment) -> str:
    """Hash of the module that measures and judges, and of what all of them are built from."""
    module = inspect.getmodule(experiment.measure)
    assert module is not None, "an experiment is defined in a module"
    return _digest("".join(inspect.getsource(part) for part in (module, stacks, tasks)))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _measure(experiment: Experiment, size: Size, seed: int) -> Mapping[Key, float]:
    with _one_core(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return experiment.measure(size)


@contextmanager
def _one_core() -> Iterator[None]:
    """Small matrices lose more by waiting for each other than they win; and sums stay the same."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _keep(out: Path, record: ExperimentRecord) -> None:
    text = report_of([record]).to_json(indent=1)
    with write_directory(out / record.name) as part:
        (part / "result.json").write_text(text, encoding="utf-8")


def _kept(out: Path, experiment: Experiment, size: Size, seed: int) -> ExperimentRecord | None:
    """The record of the same experiment, code, size and seed, if `out` has one."""
    path = out / experiment.name / "result.json"
    try:
        (record,) = ExperimentReport.from_json(path.read_text(encoding="utf-8")).experiments
    except (OSError, ResultError, ValueError, TypeError, KeyError):
        return None
    asked = (size, seed, recipe_of(experiment))
    return record if (record.size, record.seed, record.recipe) == asked else None
