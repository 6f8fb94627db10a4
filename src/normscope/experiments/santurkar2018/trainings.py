"""One training with the scope attached: the record that all figures of the paper are made from.

A figure asks for trainings and selects from them; a training that is in the store is not run again.
So all figures of a network cost its trainings once, and a run that was cut off goes on with the
training that was under way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
import xarray as xr

from normscope.experiments.recipe import Measurement, Progress
from normscope.experiments.santurkar2018.curve import Curve
from normscope.experiments.santurkar2018.networks import NETWORKS
from normscope.probes import PROBES, Probe, Scope
from normscope.problem.problem import Problem
from normscope.results import Store
from normscope.training import sgd, train

__all__ = ["EVERYTHING", "MOMENTS", "Training", "named_like", "seeded", "trained"]

RECORDS = "santurkar2018 training"
REVISION = 1  # to be raised when a change of the code changes the numbers

MOMENTS = ("activation_moments",)
EVERYTHING = (
    *("loss_variation", "gradient_predictiveness", "effective_smoothness"),
    *("covariate_shift", "activation_moments"),
)
_UNITS, _BINS = 4, 24  # sampled of each layer, and of each unit's histogram


@dataclass(frozen=True)
class Training:
    """All that decides a training and what is measured on it, but the seed.

    Args:
        network: "vgg" or "deep_linear".
        norm: its normalization.
        learning_rate: of plain gradient descent.
        steps: updates.
        measured: steps before whose update the probes look, and the accuracy is taken.
        batch_size: samples of a step; None: all of them.
        probes: names of the probes.
        distances: points on the gradient's ray, in multiples of the learning rate.
        shift_every: at least so many steps from one measurement of the covariate shift, a pass
            for every layer, to the next.
        evaluated: samples of either split on which the accuracy is taken.
        options: of the network and its data.
    """

    network: str
    norm: str
    learning_rate: float
    steps: int
    measured: tuple[int, ...]
    batch_size: int | None = None
    probes: tuple[str, ...] = EVERYTHING
    distances: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    shift_every: int = 1
    evaluated: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """For a person who waits."""
        return f"{self.network} {self.norm}, learning rate {self.learning_rate:g}"


def trained(
    trainings: Sequence[Training], seeds: Iterable[int], store: Store, progress: Progress
) -> xr.Dataset:
    """Trainings that differ in normalization or learning rate, from the store or run now.

    Args:
        trainings: every pair of their normalizations and learning rates once, or not at all.
        seeds: each training is run with each.
        store: keeps one record for each training and seed.
        progress: called with a label before each.

    Returns:
        The probes' variables over (norm, learning_rate, seed, step, ...); ``training_loss`` (the
        mean of the steps since the last measured one), ``training_accuracy`` and
        ``test_accuracy`` over step too; ``final_loss``, ``final_test_accuracy`` and
        ``updates_taken`` without it. Not a number after a divergence.
    """
    seeds = list(seeds)
    by_rate: dict[float, dict[str, xr.Dataset]] = {}
    for place, training in enumerate(trainings):
        runs: list[xr.Dataset] = []
        for seed in seeds:
            done = f"{place * len(seeds) + len(runs)} of {len(trainings) * len(seeds)}"
            progress(f"{training.label}, seed {seed}, {done} trainings done")
            runs.append(_record(training, seed, store))
        aligned = [_aligned(run, training) for run in runs]
        by_rate.setdefault(training.learning_rate, {})[training.norm] = _along(
            "seed", dict(zip(seeds, aligned, strict=True))
        )
    return _along("learning_rate", {rate: _along("norm", runs) for rate, runs in by_rate.items()})


def _along(dimension: str, parts: Mapping[Any, xr.Dataset]) -> xr.Dataset:
    """Datasets side by side along a new dimension; not a number where one of them has no value."""
    labels = xr.Variable(dimension, list(parts))
    return xr.concat(
        list(parts.values()),
        labels,
        data_vars="all",
        coords="minimal",
        compat="equals",
        join="outer",
        combine_attrs="drop_conflicts",
    ).transpose("norm", "learning_rate", "seed", ..., missing_dims="ignore")


def _record(training: Training, seed: int, store: Store) -> xr.Dataset:
    parameters = {key: _plain(value) for key, value in asdict(training).items()}

    def run() -> xr.Dataset:
        return _run(training, seed)

    return store.compute(RECORDS, parameters, seed, run, REVISION, diverged=_has_diverged)


def _has_diverged(record: xr.Dataset) -> bool:
    return bool(record["diverged"] == 1)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _aligned(record: xr.Dataset, training: Training) -> xr.Dataset:
    """The record over all steps that were to be measured, also after a divergence."""
    steps = np.array(training.measured, dtype=np.int64)
    return record.drop_vars("seed", errors="ignore").reindex(step=steps)


def _run(training: Training, seed: int) -> xr.Dataset:
    """Train once and measure."""
    network = NETWORKS[training.network]
    model, data = network.build(training, seed), network.data(training, seed)
    optimizer = sgd(training.learning_rate)(model.parameters())
    problem = Problem(model, network.loss, (data.train.x, data.train.y))
    curve = Curve(data, network.loss, training.measured, training.evaluated)
    with (
        seeded(seed),
        Scope(
            model,
            network.loss,
            optimizer,
            probes=_probes(training),
            steps=training.measured,
            seed=seed,
            distances=training.distances,
        ) as scope,
    ):
        for step in train(problem, optimizer, training.steps, training.batch_size, seed):
            curve.see(step.index, step.loss, model)
            scope.step(*step.batch)
            diverged = step.diverged
    measured = scope.results.drop_vars(("channel", "learning_rate"), errors="ignore")
    return measured.assign(curve.variables(model, diverged))


def _probes(training: Training) -> list[Probe]:
    settings = {
        "activation_moments": {"units": _UNITS, "bins": _BINS},
        "covariate_shift": {"every": training.shift_every},
    }
    return [PROBES[name](**settings.get(name, {})) for name in training.probes]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Torch's global random numbers from a seed; afterwards they go on as before.

    Args:
        seed: of the noise of noisy layers.

    Yields:
        Nothing.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def named_like(measure: Measurement, select: Callable[..., xr.Dataset]) -> Measurement:
    """The measurement under the selection's name and with its docstring."""
    measure.__name__, measure.__doc__ = select.__name__, select.__doc__
    measure.__module__, measure.__qualname__ = select.__module__, select.__qualname__
    return measure
