"""The demo's experiment: one net with and without normalization, over learning rates."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import xarray as xr

from normscope.curvature.problem import Problem
from normscope.data import Dataset, load
from normscope.models import build
from normscope.training import Outcome, evaluate, fit, sgd

Progress = Callable[[str], None]


def first_look(
    norms: Sequence[str] = ("none", "batch"),
    learning_rates: Sequence[float] = (0.01, 0.1, 1.0),
    seeds: int = 3,
    steps: int = 100,
    batch_size: int = 128,
    momentum: float = 0.9,
    seed: int = 0,
    progress: Progress = lambda label: None,
) -> xr.Dataset:
    """Training curves of the fully connected net on the embedded digits.

    The net and its initial weights are those of the mean-field paper (four layers of width 1000,
    ReLU); the loss is the cross-entropy, the optimizer SGD with momentum.

    Reference: wei2018, Section 4.

    Args:
        norms: normalizations to compare (``normscope.layers.NORMS``).
        learning_rates: learning rates to try.
        seeds: number of repetitions, each with its own weights and order of the data.
        steps: optimizer steps per run.
        batch_size: samples per step.
        momentum: heavy-ball momentum of SGD.
        seed: first seed; the others follow it.
        progress: called with a label before each run.

    Returns:
        ``loss`` (norm, learning_rate, seed, step), not-a-number after a divergence;
        ``test_accuracy``, ``steps_done`` and ``outcome`` (norm, learning_rate, seed).
    """
    data = load("digits")
    cells = (len(norms), len(learning_rates), seeds)
    loss = np.full((*cells, steps), np.nan)
    accuracy, steps_done = np.full(cells, np.nan), np.zeros(cells, dtype=int)
    outcome = np.full(cells, "", dtype=object)
    for cell in np.ndindex(cells):
        norm, rate, own_seed = norms[cell[0]], learning_rates[cell[1]], seed + cell[2]
        progress(f"{norm}, learning rate {rate:g}, seed {own_seed}")
        problem = _problem(norm, own_seed, data)
        run = fit(problem, sgd(rate, momentum), steps=steps, batch_size=batch_size, seed=own_seed)
        loss[cell][: len(run.losses)] = run.losses
        steps_done[cell], outcome[cell] = run.steps, run.outcome.name.lower()
        accuracy[cell] = _test_accuracy(problem, data, run.outcome)
    by_cell = ("norm", "learning_rate", "seed")
    return xr.Dataset(
        {
            "loss": ((*by_cell, "step"), loss),
            "test_accuracy": (by_cell, accuracy),
            "steps_done": (by_cell, steps_done),
            "outcome": (by_cell, outcome.astype(str)),
        },
        coords={
            "norm": list(norms),
            "learning_rate": list(learning_rates),
            "seed": range(seed, seed + seeds),
            "step": range(steps),
        },
        attrs={"data": data.name, "batch_size": batch_size, "momentum": momentum},
    )


def _problem(norm: str, seed: int, data: Dataset) -> Problem:
    shape = data.train.x.shape[1:]
    model = build("fully_connected", norm=norm, seed=seed, input_shape=shape)
    return Problem(model, "cross_entropy", data.train)


def _test_accuracy(problem: Problem, data: Dataset, outcome: Outcome) -> float:
    """Accuracy on the test split with population statistics; not-a-number after a divergence."""
    if outcome is Outcome.DIVERGED:
        return float("nan")
    scores = evaluate(
        problem.model, problem.loss, data.test, statistics="population", train_data=data.train
    )
    assert scores.accuracy is not None  # the digits have classes
    return scores.accuracy
