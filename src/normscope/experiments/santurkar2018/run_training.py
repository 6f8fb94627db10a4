"""One training with probes attached, resumable from a checkpoint, and an estimate of its cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from normscope.data import Dataset, Split, load
from normscope.data.dataset import DATASETS
from normscope.models import build
from normscope.probes import PROBES, Probe, Scope
from normscope.problem import Problem, RandomGenerators
from normscope.problem.loss import Loss, cross_entropy
from normscope.training import Outcome, Step, evaluate, fit, sgd, train
from normscope.training.checkpoint import read_observer

MOMENTS = ("activation_moments",)
ALL_PROBES = (
    *("loss_variation", "gradient_predictiveness", "effective_smoothness"),
    *("covariate_shift", "activation_moments"),
)
CHECKPOINT_EVERY = 500  # steps
_UNITS, _BINS = 4, 24  # units sampled per layer, and bins of each unit's histogram
_TIMED_STEPS = 6  # for the estimate; the first one is slower and left out


@dataclass(frozen=True)
class Training:
    """All settings of a training and its probes, except the seed.

    Args:
        network: "vgg" or "deep_linear".
        norm: its normalization.
        learning_rate: of plain gradient descent.
        steps: number of updates.
        measured: steps before whose update the probes and the accuracy are measured.
        batch_size: samples per step; None for all of them.
        probes: names of the probes.
        distances: points on the gradient's ray, in multiples of the learning rate.
        shift_every: least number of steps between measurements of the covariate shift, which
            costs a pass for every layer.
        evaluated: samples of either split on which the accuracy is measured.
        options: of the network and its data.
    """

    network: str
    norm: str
    learning_rate: float
    steps: int
    measured: tuple[int, ...]
    batch_size: int | None = None
    probes: tuple[str, ...] = ALL_PROBES
    distances: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    shift_every: int = 1
    evaluated: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Short description for progress messages."""
        return f"{self.network} {self.norm}, learning rate {self.learning_rate:g}"


def summed_squares(output: Tensor, target: Tensor) -> Tensor:
    r"""Return the squared distance to the target, summed over outputs and samples.

    .. math:: L = \sum_{i=1}^{m} \lVert f_i - y_i \rVert^2

    Reference: santurkar2018, Appendix A.1.

    Args:
        output: (batch, outputs).
        target: like the output.

    Returns:
        The loss, a scalar tensor.

    >>> import torch
    >>> summed_squares(torch.tensor([[1.0, 2.0]]), torch.zeros(1, 2)).item()
    5.0
    """
    return functional.mse_loss(output, target, reduction="sum")


_images = lru_cache(maxsize=1)(load)  # loads the images once per process


def _problem(training: Training, seed: int) -> tuple[nn.Module, Dataset, Loss]:
    """Return the network of a training, its data, and the loss that its learning rate refers to."""
    options: dict[str, Any] = {"norm": training.norm, "seed": seed}
    if training.network == "vgg":
        data = _images(training.options["data"])
        options["input_shape"] = tuple(data.train.x.shape[1:])
        return build("vgg", width=training.options["width"], **options), data, cross_entropy
    # a new matrix A and new inputs for every seed
    samples = training.options["samples"]
    data = DATASETS["gaussian"](samples=samples, test_samples=1, seed=seed)
    return build("deep_linear", depth=training.options["depth"], **options), data, summed_squares


class _Measurements:
    """Callback of `fit`: accuracies and probes at the measured steps; resumes with a checkpoint.

    Args:
        training: its settings.
        data: both splits.
        loss: of the training.
        scope: the probes.
        show: called with the number of every measured step.
    """

    def __init__(
        self,
        training: Training,
        data: Dataset,
        loss: Loss,
        scope: Scope,
        show: Callable[[int], None] = lambda step: None,
    ) -> None:
        self.accuracies: list[list[float]] = []  # in training and test
        self._training, self._data, self._loss = training, data, loss
        self._scope, self._show = scope, show
        self._size = min(training.evaluated, len(data.train.x), len(data.test.x))
        self._earlier, self._began = 0.0, time.process_time()

    def __call__(self, step: Step) -> None:
        if step.index in self._training.measured:
            self._show(step.index)
            splits = self._data.train, self._data.test
            found = [_accuracy(step.model, self._loss, each, self._size) for each in splits]
            self.accuracies.append(found)
        self._scope.step(*step.batch)

    @property
    def seconds(self) -> float:
        """Processor time of the training, over all calls that it was resumed by."""
        return self._earlier + time.process_time() - self._began

    def state_dict(self) -> dict[str, Any]:
        """Return the measurements so far."""
        own = {"accuracies": self.accuracies, "seconds": self.seconds}
        return {**own, "scope": self._scope.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from earlier measurements."""
        self.accuracies = [list(each) for each in state["accuracies"]]
        self._earlier = state["seconds"]
        self._scope.load_state_dict(state["scope"])


def run_training(
    training: Training, seed: int, checkpoint: Path | None, show: Callable[[int], None]
) -> xr.Dataset:
    """Train once and measure.

    Args:
        training: its settings.
        seed: of weights, data and probes.
        checkpoint: resumed from if it exists, and saved every 500 steps; None: neither.
        show: called with the number of every measured step.

    Returns:
        The record of this training, as in `run_trainings` but over ``step`` alone.
    """
    model, data, loss = _problem(training, seed)
    optimizer = sgd(training.learning_rate)(model.parameters())
    problem = Problem(model, loss, (data.train.x, data.train.y))
    scope = _scope(training, model, loss, optimizer, seed)
    measurements = _Measurements(training, data, loss, scope, show)
    with RandomGenerators().preserved(seed), scope:
        run = fit(
            problem,
            optimizer,
            training.steps,
            training.batch_size,
            seed,
            callback=measurements,
            checkpoint=checkpoint,
            checkpoint_every=CHECKPOINT_EVERY,
        )
    final = _accuracy(model, loss, data.test, len(data.test.x) if training.evaluated else 0)
    diverged = run.outcome is Outcome.DIVERGED
    return _curves(training, scope, measurements, run.losses).assign(
        final_loss=float("nan") if diverged else float(run.losses[-1]),
        updates_taken=run.steps,
        diverged=int(diverged),
        final_test_accuracy=final,
        processor_seconds=measurements.seconds,
    )


def read_unfinished(training: Training, seed: int, checkpoint: Path) -> xr.Dataset:
    """Return what a training under way has measured until its last checkpoint.

    Args:
        training: its settings.
        seed: of weights, data and probes.
        checkpoint: of the training, perhaps in another process.

    Returns:
        As `run_training`, up to that step; what only the end has is NaN.
    """
    model, data, loss = _problem(training, seed)
    scope = _scope(training, model, loss, sgd(training.learning_rate)(model.parameters()), seed)
    measurements = _Measurements(training, data, loss, scope)
    state, losses = read_observer(checkpoint)
    measurements.load_state_dict(state)
    ends = ("final_loss", "updates_taken", "diverged", "final_test_accuracy", "processor_seconds")
    found = _curves(training, scope, measurements, np.array(losses))
    return found.assign(dict.fromkeys(ends, np.nan))


def _curves(
    training: Training, scope: Scope, measurements: _Measurements, losses: np.ndarray
) -> xr.Dataset:
    """Return the probes' variables, the mean loss before each measured step, and accuracies."""
    ends = [each + 1 for each in training.measured if each < len(losses)]
    means = [np.mean(losses[begin:end]) for begin, end in pairwise((0, *ends))]
    accuracies = np.array(measurements.accuracies).reshape(-1, 2).T
    found = scope.results.drop_vars(("channel", "learning_rate"), errors="ignore")
    return found.assign(
        training_loss=("step", means),
        training_accuracy=("step", accuracies[0]),
        test_accuracy=("step", accuracies[1]),
    )


def estimate_seconds(training: Training, seed: int) -> tuple[float, float]:
    """Return the measured seconds of one step and of one measurement of a training.

    Args:
        training: its settings.
        seed: of weights and data.

    Returns:
        The median of a few steps, and one measurement beyond its step: probes and accuracies.
    """
    model, data, loss = _problem(training, seed)
    optimizer = sgd(training.learning_rate)(model.parameters())
    problem = Problem(model, loss, (data.train.x, data.train.y))
    scope = _scope(training, model, loss, optimizer, seed)
    measure = _Measurements(training, data, loss, scope)
    times, probing = [time.perf_counter()], 0.0
    with RandomGenerators().preserved(seed), scope:
        for step in train(problem, optimizer, _TIMED_STEPS, training.batch_size, seed):
            times.append(time.perf_counter())
            if step.index < 2:  # the second step completes the measurement of the first
                measure(step)
                probing += time.perf_counter() - times[-1]
                times[-1] = time.perf_counter()
    return float(np.median(np.diff(times)[1:])), probing


def _scope(
    training: Training, model: nn.Module, loss: Loss, optimizer: Optimizer, seed: int
) -> Scope:
    options: dict[str, Any] = {"steps": training.measured, "distances": training.distances}
    return Scope(model, loss, optimizer, probes=_probes(training), seed=seed, **options)


def _accuracy(model: nn.Module, loss: Loss, split: Split, size: int) -> float:
    """Return the accuracy on the first samples of a split; NaN if it is not measured."""
    found = evaluate(model, loss, (split.x[:size], split.y[:size])).accuracy if size else None
    return float("nan") if found is None else found


def _probes(training: Training) -> list[Probe]:
    settings = {
        "activation_moments": {"units": _UNITS, "bins": _BINS},
        "covariate_shift": {"every": training.shift_every},
    }
    return [PROBES[name](**settings.get(name, {})) for name in training.probes]
