"""The consequence of gradient explosion: deep batch-normalized nets do not train without skips."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from normscope.curvature.problem import Problem
from normscope.data import load
from normscope.experiments.recipe import Progress, experiment
from normscope.experiments.yang2019.stack import Stack
from normscope.plots.trainability import trainability as draw
from normscope.results import Claim, Store
from normscope.training import Outcome, fit, sgd

__all__ = ["trainability"]

NAMES = ("batch", "batch, skip")
LEARNT = 0.5  # of the loss of guessing: a net that stays above has not trained
TAIL = 10  # last steps whose mean is the final loss


def _claims(results: xr.Dataset) -> list[Claim]:
    """Where plain nets stop training, and that those with skip connections do not."""
    guessing = math.log(results.attrs["classes"])
    loss = results["best_loss"]
    plain, skip = (loss.sel(architecture=name) for name in NAMES)
    stuck = plain.min("seed") > LEARNT * guessing
    depths = results["depth"].values
    stops = [int(depth) for depth, each in zip(depths, stuck.values, strict=True) if each]
    shallow_trains = bool((plain.isel(depth=0) < LEARNT * guessing).all())
    at = f" from depth {stops[0]} on" if stops else " at no depth tried"
    return [
        Claim(
            "deep plain batch-normalized nets are untrainable, at every learning rate tried",
            "yang2019, in the encyclopaedia article",
            f"after {results.attrs['steps']} steps no seed below half the loss of guessing "
            f"({LEARNT * guessing:.2f}){at}; " + _by_depth(plain),
            shallow_trains and bool(stuck.values[-1]),
        ),
        Claim(
            "residual connections lift it",
            "yang2019, in the encyclopaedia article",
            _by_depth(skip),
            bool((skip.max("seed") < LEARNT * guessing).all()) and bool(stops),
        ),
    ]


def _by_depth(loss: xr.DataArray) -> str:
    texts = []
    for depth in loss["depth"].values:
        each = loss.sel(depth=depth).values
        texts.append(f"{depth}: {each.mean():.3g} ({each.min():.3g} to {each.max():.3g})")
    return f"best loss by depth, {loss.sizes['seed']} seeds: {', '.join(texts)}"


@experiment(
    "yang2019/trainability",
    claims=_claims,
    figure=draw,
    scales={
        "quick": {
            "depths": (4, 48),
            "learning_rates": (0.1, 1.0),
            "width": 32,
            "batch_size": 32,
            "steps": 40,
        },
        "small": {"data": "mnist"},
        "paper": {
            "data": "mnist",
            "depths": (10, 20, 30, 40, 60, 80, 120, 160),
            "learning_rates": (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
            "width": 1000,
            "batch_size": 128,
            "steps": 3000,
            "seeds": 5,
        },
    },
)
def trainability(
    *,
    data: str = "digits",
    depths: Sequence[int] = (5, 10, 20, 40, 80),
    learning_rates: Sequence[float] = (0.03, 0.3, 1.0),
    width: int = 64,
    batch_size: int = 64,
    steps: int = 150,
    seeds: int = 3,
    seed: int = 0,
    store: Store,
    progress: Progress,
) -> xr.Dataset:
    """Final training loss against depth, with and without skip connections, per learning rate.

    Fully connected ReLU nets with batch normalization, plain SGD, cross-entropy.

    Reference: yang2019.

    Args:
        data: digits or mnist.
        depths: numbers of blocks.
        learning_rates: to choose the best of.
        width: units of a block.
        batch_size: samples per step.
        steps: optimizer steps.
        seeds: trainings of each kind.
        seed: first seed; the others follow it.
        store: keeps each training.
        progress: called with a label before each training.

    Returns:
        ``loss`` (architecture, depth, learning_rate, seed): the mean of the last ten steps, not a
        number after a divergence; ``best_loss`` (architecture, depth, seed).
    """
    samples = load(data)
    own_seeds = list(range(seed, seed + seeds))
    common = {"data": data, "width": width, "batch_size": batch_size, "steps": steps}
    losses = []
    for architecture, depth, rate, own in itertools.product(
        NAMES, depths, learning_rates, own_seeds
    ):
        progress(f"{architecture}, depth {depth}, learning rate {rate:g}, seed {own}")
        kind = {"architecture": architecture, "depth": depth, "learning_rate": rate}
        losses.append(_stored(store, samples.train, {**common, **kind}, own))
    values = np.reshape(losses, (len(NAMES), len(depths), len(learning_rates), seeds))
    best = np.where(np.isnan(values), np.inf, values).min(2)  # inf: every rate diverged
    coordinates = {
        "architecture": list(NAMES),
        "depth": list(depths),
        "learning_rate": list(learning_rates),
        "seed": own_seeds,
    }
    variables = {
        "loss": (tuple(coordinates), values),
        "best_loss": (("architecture", "depth", "seed"), best),
    }
    return xr.Dataset(variables, coordinates, {**common, "classes": len(samples.classes)})


def _stored(store: Store, samples: Any, parameters: dict[str, Any], seed: int) -> float:
    found = store.compute(
        "yang2019/trainability run",
        parameters,
        seed,
        lambda: _trained(samples, seed=seed, **parameters),
    )
    return float(found["loss"])


def _trained(
    samples: Any,
    data: str,
    architecture: str,
    depth: int,
    width: int,
    learning_rate: float,
    batch_size: int,
    steps: int,
    seed: int,
) -> xr.Dataset:
    """The final loss of one training."""
    x, y = samples
    network = Stack(
        architecture, x[0].numel(), int(y.max()) + 1, depth=depth, width=width, seed=seed
    )
    problem = Problem(network, "cross_entropy", samples)
    run = fit(problem, sgd(learning_rate), steps=steps, batch_size=batch_size, seed=seed)
    diverged = run.outcome is Outcome.DIVERGED
    final = math.nan if diverged else float(run.losses[-TAIL:].mean())
    return xr.Dataset({"loss": final})
