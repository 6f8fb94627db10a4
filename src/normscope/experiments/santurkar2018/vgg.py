"""The trainings of the VGG network that the figures share, and their scales."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from normscope.experiments.recipe import Measurement, Progress
from normscope.experiments.santurkar2018.trainings import (
    EVERYTHING,
    MOMENTS,
    Training,
    named_like,
    trained,
)
from normscope.results import Store

__all__ = ["LEARNING_RATE", "SCALES", "on_vgg", "vgg_trainings"]

LEARNING_RATE = 0.1
BATCH_SIZE = 128
DISTANCES = tuple(np.linspace(0.5, 4.0, 8).tolist())
QUICK_DISTANCES = (0.5, 1.5, 4.0)

#: Settings other than the paper's. Small: an eighth of the width, for two cores.
SCALES: Mapping[str, Mapping[str, Any]] = {
    "quick": {"data": "digits", "width": 0.03, "steps": 4, "every": 2, "evaluated": 50, "seeds": 1},
    "small": {"width": 0.125, "steps": 300, "every": 25, "evaluated": 1000},
    "paper": {},
}


def vgg_trainings(
    norms: Sequence[str],
    rates: Sequence[float] = (LEARNING_RATE,),
    *,
    data: str,
    width: float,
    steps: int,
    every: int,
    evaluated: int,
) -> list[Training]:
    """VGG on images, batch 128, plain gradient descent without augmentation.

    Reference: santurkar2018, Appendix A.1.

    Args:
        norms: normalizations.
        rates: learning rates; the landscape is measured at 0.1 only, the paper's rate.
        data: cifar10, or digits for a look, with three points on the ray.
        width: multiplier of the hidden sizes.
        steps: updates.
        every: steps from one measurement to the next; twice as many for the covariate shift.
        evaluated: samples of either split on which the accuracy is taken.

    Returns:
        For `trained`; with each seed its own weights and order of the data.
    """
    return [
        Training(
            network="vgg",
            norm=norm,
            learning_rate=rate,
            steps=steps,
            measured=tuple(range(0, steps, every)),
            batch_size=BATCH_SIZE,
            probes=EVERYTHING if rate == LEARNING_RATE else MOMENTS,
            distances=QUICK_DISTANCES if data == "digits" else DISTANCES,
            shift_every=2 * every,
            evaluated=evaluated,
            options={"data": data, "width": width},
        )
        for rate in rates
        for norm in norms
    ]


def on_vgg(
    norms: Sequence[str], rates: Sequence[float] = (LEARNING_RATE,)
) -> Callable[[Callable[[xr.Dataset], xr.Dataset]], Measurement]:
    """Decorator: a measurement from what it selects of the shared trainings of VGG.

    Its settings, by default the paper's, are ``data``, ``width``, ``steps``, ``every``,
    ``evaluated``, as `vgg_trainings` takes them, ``seeds`` and the first ``seed``.

    Args:
        norms: normalizations it needs.
        rates: learning rates; if it is one, the selection is given no dimension for it.

    Returns:
        The decorator.
    """

    def decorate(select: Callable[[xr.Dataset], xr.Dataset]) -> Measurement:
        def measure(
            *,
            data: str = "cifar10",
            width: float = 1.0,
            steps: int = 15_000,
            every: int = 250,
            evaluated: int = 10_000,
            seeds: int = 3,
            seed: int = 0,
            store: Store,
            progress: Progress,
        ) -> xr.Dataset:
            shape: dict[str, Any] = {"data": data, "width": width, "steps": steps}
            trainings = vgg_trainings(norms, rates, every=every, evaluated=evaluated, **shape)
            results = trained(trainings, range(seed, seed + seeds), store, progress)
            one = results.isel(learning_rate=0) if len(rates) == 1 else results
            return select(one).assign_attrs(shape, evaluated=evaluated)

        return named_like(measure, select)

    return decorate
