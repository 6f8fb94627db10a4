"""The trainings of the deep linear network that the figures share, and their scales."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from normscope.errors import InputError
from normscope.experiments.recipe import Measurement, Progress
from normscope.experiments.santurkar2018.trainings import (
    EVERYTHING,
    Training,
    named_like,
    trained,
)
from normscope.results import Store

__all__ = [
    "LEARNING_RATE",
    "SCALES",
    "deep_linear_trainings",
    "measured_steps",
    "on_deep_linear",
]

LEARNING_RATE = 1e-6
DISTANCES = (0.01, 0.1, 1.0, 3.0, 6.0, 10.0, 20.0, 30.0)

#: Settings other than the paper's. Small: the loss stands still well before 4,000 steps; the
#: paper's 10,000 take a minute or two for each training on a CPU.
SCALES: Mapping[str, Mapping[str, Any]] = {
    "quick": {
        "depth": 5,
        "samples": 100,
        "linear_steps": 20,
        "linear_every": 10,
        "seeds": 1,
    },
    "small": {"linear_steps": 4_000, "linear_every": 200},
    "paper": {},
}


def deep_linear_trainings(
    norms: Sequence[str],
    rates: Sequence[float] = (LEARNING_RATE,),
    probes: Sequence[str] = EVERYTHING,
    *,
    depth: int,
    samples: int,
    linear_steps: int,
    linear_every: int,
) -> list[Training]:
    """Deep linear networks on Gaussian data, full batch, the loss summed over the samples.

    Reference: santurkar2018, Appendix A.1.

    Args:
        norms: normalizations.
        rates: learning rates.
        probes: what is measured.
        depth: number of 10 x 10 matrices.
        samples: of the data, all of which are the batch.
        linear_steps: updates.
        linear_every: steps from one measurement to the next, a tenth of it in the first tenth.

    Returns:
        For `trained`; with each seed its own weights, matrix A and inputs.
    """
    _check_depth(depth)
    options = {"depth": depth, "samples": samples}
    measured = measured_steps(linear_steps, linear_every)
    return [
        Training(
            network="deep_linear",
            norm=norm,
            learning_rate=rate,
            steps=linear_steps,
            measured=measured,
            probes=tuple(probes),
            distances=DISTANCES,
            options=options,
        )
        for rate in rates
        for norm in norms
    ]


def _check_depth(depth: int) -> None:
    if depth < 2:
        raise InputError(
            f"depth must be at least 2, got {depth}: the deep linear network is looked at in the "
            "layers that another precedes."
        )


def measured_steps(steps: int, every: int) -> tuple[int, ...]:
    """Ten times as dense in the first tenth, where full-batch descent does most of its work.

    >>> measured_steps(40, 20)
    (0, 2, 20)
    """
    first = steps // 10
    dense = np.arange(0, first, max(1, every // 10))
    return tuple(np.unique([*dense, *range(0, steps, every)]).tolist())


def on_deep_linear(
    norms: Sequence[str],
) -> Callable[[Callable[[xr.Dataset], xr.Dataset]], Measurement]:
    """Decorator: a measurement from what it selects of the deep linear network's trainings.

    Its settings, by default the paper's, are ``depth``, ``samples``, ``linear_steps``,
    ``linear_every``, as `deep_linear_trainings` takes them, ``seeds`` and the first ``seed``.

    Args:
        norms: normalizations it needs.

    Returns:
        The decorator.
    """

    def decorate(select: Callable[[xr.Dataset], xr.Dataset]) -> Measurement:
        def measure(
            *,
            depth: int = 25,
            samples: int = 1000,
            linear_steps: int = 10_000,
            linear_every: int = 500,
            seeds: int = 3,
            seed: int = 0,
            store: Store,
            progress: Progress,
        ) -> xr.Dataset:
            trainings = deep_linear_trainings(
                norms,
                depth=depth,
                samples=samples,
                linear_steps=linear_steps,
                linear_every=linear_every,
            )
            results = trained(trainings, range(seed, seed + seeds), store, progress)
            return select(results.isel(learning_rate=0)).assign_attrs(steps=linear_steps)

        return named_like(measure, select)

    return decorate
