"""Full-batch Adam: the preconditioned sharpness settles at 38 / learning rate."""

from __future__ import annotations

from collections.abc import Sequence

import xarray as xr
from matplotlib.figure import Figure

from normscope.experiments.cohen2021.trainings import run_all, settings_of, settled, settled_claim
from normscope.experiments.recipe import experiment
from normscope.plots.stability import edge_figure
from normscope.progress import ProgressCallback
from normscope.results import Claim, Store

SHARPNESS, EDGE = "preconditioned_sharpness", "preconditioned_threshold"


def adam_claims(results: xr.Dataset) -> list[Claim]:
    """Whether the preconditioned sharpness of each training settles at 38 / learning rate."""
    statement = "Under full-batch Adam the top eigenvalue of the preconditioned Hessian "
    statement += "equilibrates at the stability threshold, 38 / rate for beta1 = 0.9."
    claims = []
    for run in map(str, results["run"].values):
        found = settled(results, run, SHARPNESS, EDGE)
        text = f"full-batch Adam with beta1 = 0.9, {run}: the preconditioned sharpness settles at "
        text += "38 / rate, within 10 %"
        claims.append(settled_claim(text, "cohen2022", statement, found, "38 / rate"))
    return claims


def adam_figure(results: xr.Dataset) -> Figure:
    """Preconditioned sharpness over steps with 38 / learning rate, a panel for each training."""
    return edge_figure(results, SHARPNESS, {EDGE: "38 / learning rate"})


@experiment(
    "cohen2021/adam",
    claims=adam_claims,
    figure=adam_figure,
    scales={
        "quick": {
            "networks": ("fc-tanh",),
            "rates": (0.003,),
            "steps": (60,),
            "every": 6,
            "data": "digits",
            "samples": 100,
            "width": 16,
        },
        "small": {},
        "paper": {"rates": (1e-4, 2e-4), "steps": (5000, 5000)},
    },
)
def adam(
    *,
    networks: Sequence[str] = ("fc-tanh", "fc-tanh"),
    rates: Sequence[float] = (2e-4, 3e-4),
    steps: Sequence[int] = (450, 450),
    every: int = 25,
    data: str = "cifar10",
    samples: int = 5000,
    width: int = 200,
    channels: int = 8,
    seed: int = 0,
    store: Store,
    progress: ProgressCallback,
) -> xr.Dataset:
    """Preconditioned sharpness of networks that are trained by full-batch Adam.

    It has settled at 38 / rate if the median of the last third of its measurements is within 10 %
    of it; a training that never came within 10 % decides nothing.

    Reference: cohen2022, Section 4.

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
    shared = {"every": every, "data": data, "samples": samples, "optimizer": "adam"}
    settings = settings_of(networks, rates, steps, width=width, channels=channels, **shared)
    return run_all(settings, seed, store, progress)
