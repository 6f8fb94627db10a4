"""One cell of a phase diagram: a short training, as a function of its parameters alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from torch import nn

from normscope.problem.problem import Problem
from normscope.sweeps.training_settings import Training
from normscope.training import Evaluation, Outcome, evaluate, sgd
from normscope.training.loop import Loop

__all__ = ["has_diverged", "summary", "tested", "training_cell"]

_POINTS = 100  # of the loss curve that is kept, at most
_BATCH = 1024  # of the evaluation


def training_cell(*, seed: int, **parameters: Any) -> xr.Dataset:
    """Train one network and test it; divergence ends it at once.

    Args:
        seed: of the weights and of the order of the data.
        **parameters: the settings of `Training`, and options of the model.

    Returns:
        ``loss`` (step), thinned; ``train_loss``, ``loss_growth``, ``test_loss``, ``test_accuracy``,
        ``steps_done`` and ``outcome``; with ``every_epoch`` also ``test_loss_by_epoch`` and
        ``test_accuracy_by_epoch`` (epoch).

    >>> cell = training_cell(learning_rate=0.01, epochs=1, width=20, samples=256, seed=0)
    >>> str(cell["outcome"].values), int(cell["steps_done"])
    ('finished', 2)
    """
    training = Training.of(parameters)
    network = training.network(seed).to(training.device)
    problem = Problem(network, training.loss_function, tuple(training.data_set.train))
    optimizer = sgd(training.learning_rate, training.momentum, weight_decay=training.weight_decay)
    loop = Loop(problem, optimizer, training.batch_size, seed, True, training.divergence_factor)
    by_epoch: list[Evaluation] = []

    def look() -> None:
        if training.every_epoch and loop.taken % training.steps_per_epoch == 0:
            by_epoch.append(tested(network, training))

    for _ in loop.run(training.steps, after_update=look):
        pass
    diverged = loop.outcome is Outcome.DIVERGED
    score = Evaluation(math.nan, math.nan) if diverged else tested(network, training)
    losses = np.array(loop.losses, dtype=np.float64)
    found = summary(losses, loop.taken, diverged, score, training.steps)
    return _with_epochs(found, by_epoch, score, training) if training.every_epoch else found


def has_diverged(dataset: xr.Dataset) -> bool:
    """Whether a cell's training exploded."""
    return str(dataset["outcome"].values) == "diverged"


def summary(
    losses: NDArray[np.float64], taken: int, diverged: bool, score: Evaluation, steps: int
) -> xr.Dataset:
    """What is kept of a training.

    Args:
        losses: of every step.
        taken: number of updates.
        diverged: whether the training exploded.
        score: on the test split.
        steps: updates that were planned; decides at which steps the loss is kept.

    Returns:
        The dataset of the cell. A test loss that is not finite is a divergence too.
    """
    exploded = diverged or not math.isfinite(score.loss)
    stride = math.ceil(steps / _POINTS)
    kept = losses[::stride]
    last = losses[-max(1, steps // 10) :]
    with np.errstate(over="ignore", invalid="ignore"):
        growth = float(np.nanmax(losses / losses[0])) if losses[0] > 0 else math.nan
        train_loss = math.nan if exploded else float(last.mean())
    accuracy = math.nan if exploded or score.accuracy is None else score.accuracy
    values = {
        "train_loss": train_loss,
        "loss_growth": math.inf if not np.isfinite(losses[-1]) else growth,
        "test_loss": math.nan if exploded else score.loss,
        "test_accuracy": accuracy,
        "steps_done": taken,
        "outcome": "diverged" if exploded else "finished",
    }
    return xr.Dataset(
        {"loss": ("step", kept), **values},
        coords={"step": np.arange(len(kept)) * stride},
        attrs={"steps": steps},
    )


def tested(network: nn.Module, training: Training) -> Evaluation:
    """Loss and accuracy on the test split, by the running statistics."""
    test = training.data_set.test
    return evaluate(network, training.loss_function, (test.x, test.y), batch_size=_BATCH)


def _with_epochs(
    found: xr.Dataset, by_epoch: Sequence[Evaluation], score: Evaluation, training: Training
) -> xr.Dataset:
    """The evaluations after each epoch, a last part counting as one; not-a-number once diverged."""
    epochs = math.ceil(training.steps / training.steps_per_epoch)
    loss, accuracy = np.full(epochs, np.nan), np.full(epochs, np.nan)
    for number, each in enumerate([*by_epoch, score][:epochs]):
        loss[number] = each.loss
        accuracy[number] = np.nan if each.accuracy is None else each.accuracy
    variables = {
        "test_loss_by_epoch": ("epoch", loss),
        "test_accuracy_by_epoch": ("epoch", accuracy),
    }
    return found.assign(variables).assign_coords(epoch=np.arange(1, epochs + 1))
