"""How large a learning rate the net takes, three ways, and how it trains at half of that."""

from __future__ import annotations

import math
from collections.abc import Callable

import xarray as xr

from normscope.experiments.santurkar2018.trainings import seeded
from normscope.experiments.tour.net import LOSS, Net
from normscope.learning_rate import max_learning_rate
from normscope.training import Outcome, evaluate, fit, sgd

__all__ = ["limits", "training"]

_RATES = ("limit", "curvature_bound", "recommended", "predicted")


def limits(net: Net, norm: str, seed: int, tell: Callable[[str], None]) -> xr.Dataset:
    """The learning-rate limit of one net: by curvature, by theory, verified by short runs.

    Args:
        net: the network.
        norm: its normalization.
        seed: of weights and order of the data.
        tell: called with a text as each run begins.

    Returns:
        ``limit``, ``curvature_bound``, ``recommended``, ``predicted``, ``theory`` (NaN where
        the theory does not cover the net: ``theory_says`` has the reason), ``stable`` and
        ``unstable``, the rates between which the short runs enclosed the limit.
    """
    advice = max_learning_rate(
        net.model(norm, seed),
        LOSS,
        net.samples.train,
        net.momentum,
        batch_size=net.batch_size,
        seed=seed,
        progress=tell,
    )
    stable, unstable = advice.verified or (math.nan, math.nan)
    return xr.Dataset(
        {
            **{name: float(getattr(advice, name)) for name in _RATES},
            "theory": math.nan if advice.theory is None else advice.theory,
            "theory_says": advice.mean_field.reason,
            "stable": stable,
            "unstable": unstable,
        }
    )


def training(net: Net, norm: str, seed: int, rate: float, steps: int) -> xr.Dataset:
    """One training at a learning rate, and how good the net is at its end.

    Args:
        net: the network.
        norm: its normalization.
        seed: of weights, order of the data and noise.
        rate: of SGD.
        steps: updates.

    Returns:
        ``training_loss`` (training_step), not a number after a divergence; ``test_accuracy`` with
        the population statistics of the training data; ``outcome``.
    """
    problem, data = net.problem(norm, seed), net.samples
    accuracy = None
    with seeded(seed):  # of the noise behind BatchNorm
        run = fit(problem, sgd(rate, net.momentum), steps, net.batch_size, seed)
        if run.outcome is not Outcome.DIVERGED:
            accuracy = evaluate(
                problem.model, LOSS, data.test, statistics="population", train_data=data.train
            ).accuracy
    losses = xr.DataArray(
        run.losses, dims="training_step", coords={"training_step": range(len(run.losses))}
    )
    return xr.Dataset(
        {
            "training_loss": losses.reindex(training_step=range(steps)),
            "test_accuracy": math.nan if accuracy is None else accuracy,
            "outcome": run.outcome.name.lower(),
        }
    )
