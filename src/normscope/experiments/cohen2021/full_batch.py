"""Full-batch training: the sharpness settles at 2 / learning rate, under Adam at 38 / it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import xarray as xr
from matplotlib.figure import Figure

from normscope.experiments.cohen2021.trainings import run_all, settings_of, settled_claims
from normscope.experiments.recipe import experiment
from normscope.plots.stability import edge_figure
from normscope.progress import ProgressCallback
from normscope.results import Claim, Store

_SHARED = {"data": "cifar10", "samples": 5000, "width": 200, "channels": 8, "seed": 0}
_QUICK = {"data": "digits", "samples": 100, "width": 16}


def gradient_descent_claims(results: xr.Dataset) -> list[Claim]:
    """Whether the sharpness of each training settles at 2 / learning rate."""
    return settled_claims(
        results,
        "cohen2021, Section 3.1",
        "Under full-batch gradient descent the sharpness rises until it reaches 2 / rate, and then "
        "hovers at or just above it.",
        lambda run: (
            *("sharpness", "sharpness_threshold", "2 / rate"),
            f"full-batch gradient descent, {run}: the sharpness settles at 2 / rate, within 10 %",
        ),
    )


def adam_claims(results: xr.Dataset) -> list[Claim]:
    """Whether the preconditioned sharpness of each training settles at 38 / learning rate."""
    return settled_claims(
        results,
        "cohen2022",
        "Under full-batch Adam the top eigenvalue of the preconditioned Hessian equilibrates at "
        "the stability threshold, 38 / rate for beta1 = 0.9.",
        lambda run: (
            *("preconditioned_sharpness", "preconditioned_threshold", "38 / rate"),
            f"full-batch Adam with beta1 = 0.9, {run}: the preconditioned sharpness settles at "
            "38 / rate, within 10 %",
        ),
    )


def gradient_descent_figure(results: xr.Dataset) -> Figure:
    """Draw the sharpness over steps with 2 / learning rate, a panel for each training."""
    return edge_figure(results, "sharpness", {"sharpness_threshold": "2 / learning rate"})


def adam_figure(results: xr.Dataset) -> Figure:
    """Draw the preconditioned sharpness with 38 / learning rate, a panel for each training."""
    edges = {"preconditioned_threshold": "38 / learning rate"}
    return edge_figure(results, "preconditioned_sharpness", edges)


@experiment(
    "cohen2021/gradient_descent",
    claims=gradient_descent_claims,
    figure=gradient_descent_figure,
    defaults={
        "networks": ("fc-tanh", "fc-tanh", "cnn", "cnn-bn"),
        "rates": (0.03, 0.04, 0.2, 0.03),
        "steps": (600, 600, 250, 250),
        "every": 20,
        **_SHARED,
    },
    scales={
        "quick": {
            "networks": ("fc-tanh", "cnn-bn"),
            "rates": (0.2, 0.2),
            "steps": (60, 40),
            "every": 5,
            **_QUICK,
            "channels": 4,
        },
        "small": {},
        "paper": {"steps": (20_000, 20_000, 10_000, 10_000), "channels": 32},
    },
)
def gradient_descent(**settings: Any) -> xr.Dataset:
    """Sharpness of networks that are trained by full-batch gradient descent.

    Tanh networks with the squared error: fully connected with two hidden layers, and two
    convolutions with BatchNorm and without.

    Reference: cohen2021, Section 3.1.

    Args:
        **settings: those of `train_on_all`.

    Returns:
        The variables of the probe ``stability`` over ``run`` and ``step``.
    """
    return train_on_all("sgd", **settings)


@experiment(
    "cohen2021/adam",
    claims=adam_claims,
    figure=adam_figure,
    defaults={
        "networks": ("fc-tanh", "fc-tanh"),
        "rates": (2e-4, 3e-4),
        "steps": (450, 450),
        "every": 25,
        **_SHARED,
    },
    scales={
        "quick": {
            "networks": ("fc-tanh",),
            "rates": (0.003,),
            "steps": (60,),
            "every": 6,
            **_QUICK,
        },
        "small": {},
        "paper": {"rates": (1e-4, 2e-4), "steps": (5000, 5000)},
    },
)
def adam(**settings: Any) -> xr.Dataset:
    """Preconditioned sharpness of networks that are trained by full-batch Adam.

    Reference: cohen2022, Section 4.

    Args:
        **settings: those of `train_on_all`.

    Returns:
        The variables of the probe ``stability`` over ``run`` and ``step``.
    """
    return train_on_all("adam", **settings)


def train_on_all(
    optimizer: str,
    *,
    networks: Sequence[str],
    rates: Sequence[float],
    steps: Sequence[int],
    seed: int,
    store: Store,
    progress: ProgressCallback,
    **shared: Any,
) -> xr.Dataset:
    """Return what the stability gauge measures while networks are trained on all samples.

    A sharpness has settled at its threshold if the median of the last third of its measurements is
    within 10 % of it; a training that never came within 10 % decides nothing.

    Args:
        optimizer: "sgd" or "adam".
        networks: "fc-tanh", "cnn" or "cnn-bn", one for each training.
        rates: the learning rate of each training.
        steps: the number of updates of each training.
        seed: of the initial weights.
        store: keeps each training.
        progress: receives an event before each training.
        **shared: every (steps from one measurement to the next), data (a registered data set),
            samples (training images, all in one batch), width (units of a hidden layer of
            "fc-tanh") and channels (of a convolution).

    Returns:
        The variables of the probe ``stability`` over ``run`` and ``step``.
    """
    settings = settings_of(networks, rates, steps, optimizer=optimizer, **shared)
    return run_all(settings, seed, store, progress)
