"""Full-batch gradient descent: the sharpness settles at 2 / learning rate."""

from __future__ import annotations

from collections.abc import Sequence

import xarray as xr
from matplotlib.figure import Figure

from normscope.experiments.cohen2021.trainings import run_all, settings_of, settled, settled_claim
from normscope.experiments.recipe import experiment
from normscope.plots.stability import edge_figure
from normscope.progress import ProgressCallback
from normscope.results import Claim, Store

SHARPNESS, EDGE = "sharpness", "sharpness_threshold"


def gradient_descent_claims(results: xr.Dataset) -> list[Claim]:
    """Whether the sharpness of each training settles at 2 / learning rate."""
    statement = "Under full-batch gradient descent the sharpness rises until it reaches 2 / rate, "
    statement += "and then hovers at or just above it."
    claims = []
    for run in map(str, results["run"].values):
        found = settled(results, run, SHARPNESS, EDGE)
        text = f"full-batch gradient descent, {run}: the sharpness settles at 2 / rate, within 10 %"
        source = "cohen2021, Section 3.1"
        claims.append(settled_claim(text, source, statement, found, "2 / rate"))
    return claims


def gradient_descent_figure(results: xr.Dataset) -> Figure:
    """Sharpness over steps with 2 / learning rate, a panel for each training."""
    return edge_figure(results, SHARPNESS, {EDGE: "2 / learning rate"})


@experiment(
    "cohen2021/gradient_descent",
    claims=gradient_descent_claims,
    figure=gradient_descent_figure,
    scales={
        "quick": {
            "networks": ("fc-tanh", "cnn-bn"),
            "rates": (0.2, 0.2),
            "steps": (60, 40),
            "every": 5,
            "data": "digits",
            "samples": 100,
            "width": 16,
            "channels": 4,
        },
        "small": {},
        "paper": {"steps": (20_000, 20_000, 10_000, 10_000), "channels": 32},
    },
)
def gradient_descent(
    *,
    networks: Sequence[str] = ("fc-tanh", "fc-tanh", "cnn", "cnn-bn"),
    rates: Sequence[float] = (0.03, 0.04, 0.2, 0.03),
    steps: Sequence[int] = (600, 600, 250, 250),
    every: int = 20,
    data: str = "cifar10",
    samples: int = 5000,
    width: int = 200,
    channels: int = 8,
    seed: int = 0,
    store: Store,
    progress: ProgressCallback,
) -> xr.Dataset:
    """Sharpness of networks that are trained by full-batch gradient descent.

    Tanh networks with the squared error: fully connected with two hidden layers, and two
    convolutions with BatchNorm and without. A sharpness has settled at 2 / rate if the median of
    the last third of its measurements is within 10 % of it; a training whose sharpness never came
    within 10 % decides nothing.

    Reference: cohen2021, Section 3.1.

    Args:
        networks: "fc-tanh", "cnn" or "cnn-bn", one for each training.
        rates: the learning rate of each training.
        steps: the number of updates of each training.
        every: steps from one measurement to the next.
        data: a registered data set.
        samples: number of training images, all in one batch.
        width: units of a hidden layer of "fc-tanh".
        channels: of a convolution.
        seed: of the initial weights.
        store: keeps each training.
        progress: receives an event before each training.

    Returns:
        The variables of the probe ``stability`` over ``run`` and ``step``.
    """
    shared = {"every": every, "data": data, "samples": samples}
    settings = settings_of(networks, rates, steps, width=width, channels=channels, **shared)
    return run_all(settings, seed, store, progress)
