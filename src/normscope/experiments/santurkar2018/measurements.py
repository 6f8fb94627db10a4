"""The paper's trainings of VGG and the deep linear network, and their scales."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from normscope.errors import InputError
from normscope.experiments.santurkar2018.training import ALL_PROBES, MOMENTS, Training

VGG_RATE = 0.1
VGG_BATCH_SIZE = 128
VGG_DISTANCES = tuple(np.linspace(0.5, 4.0, 8).tolist())
VGG_QUICK_DISTANCES = (0.5, 1.5, 4.0)
LINEAR_RATE = 1e-6
LINEAR_DISTANCES = (0.01, 0.1, 1.0, 3.0, 6.0, 10.0, 20.0, 30.0)

#: The paper's settings of each network.
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "vgg": {"data": "cifar10", "width": 1.0, "steps": 15_000, "every": 250, "evaluated": 10_000},
    "deep_linear": {
        "depth": 25,
        "samples": 1000,
        "linear_steps": 10_000,
        "linear_every": 500,
    },
}
#: Settings that differ from the paper's. Small: VGG at an eighth of its width and a fiftieth of
#: the steps, minutes on two cores; the deep linear network's loss is constant well before 4,000
#: steps. Medium: all of the paper's steps, VGG at a quarter of its width, which takes 15 to 20
#: minutes of one core for each training; a deep linear training takes 1 to 3.
SETTINGS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "vgg": {
        "quick": {"data": "digits", "width": 0.03, "steps": 4, "every": 2, "evaluated": 50},
        "small": {"width": 0.125, "steps": 300, "every": 25, "evaluated": 1000},
        "medium": {"width": 0.25, "evaluated": 2_000},
        "paper": {},
    },
    "deep_linear": {
        "quick": {"depth": 5, "samples": 100, "linear_steps": 20, "linear_every": 10},
        "small": {"linear_steps": 4_000, "linear_every": 200},
        "medium": {},
        "paper": {},
    },
}
_DIMENSIONS = ("step", "layer", "distance", "learning_rate")  # each network has its own


def vgg_trainings(
    norms: Sequence[str],
    rates: Sequence[float] = (VGG_RATE,),
    *,
    data: str,
    width: float,
    steps: int,
    every: int,
    evaluated: int,
) -> list[Training]:
    """Return trainings of VGG: batch 128, plain gradient descent without augmentation.

    Reference: santurkar2018, Appendix A.1.

    Args:
        norms: normalizations.
        rates: learning rates; the landscape is measured at 0.1 only, the paper's rate.
        data: cifar10, or digits for a quick run with three points on the ray.
        width: multiplier of the hidden sizes.
        steps: number of updates.
        every: steps between measurements; twice as many for the covariate shift.
        evaluated: samples of either split on which the accuracy is measured.

    Returns:
        Input of `run_trainings`; each seed has its own weights and order of the data.
    """
    return [
        Training(
            network="vgg",
            norm=norm,
            learning_rate=rate,
            steps=steps,
            measured=tuple(range(0, steps, every)),
            batch_size=VGG_BATCH_SIZE,
            probes=ALL_PROBES if rate == VGG_RATE else MOMENTS,
            distances=VGG_QUICK_DISTANCES if data == "digits" else VGG_DISTANCES,
            shift_every=2 * every,
            evaluated=evaluated,
            options={"data": data, "width": width},
        )
        for rate in rates
        for norm in norms
    ]


def deep_linear_trainings(
    norms: Sequence[str],
    rates: Sequence[float] = (LINEAR_RATE,),
    probes: Sequence[str] = ALL_PROBES,
    *,
    depth: int,
    samples: int,
    linear_steps: int,
    linear_every: int,
) -> list[Training]:
    """Return trainings of the deep linear network: Gaussian data, full batch, summed loss.

    Reference: santurkar2018, Appendix A.1.

    Args:
        norms: normalizations.
        rates: learning rates.
        probes: names of the probes.
        depth: number of 10 x 10 matrices.
        samples: of the data, all of which are the batch.
        linear_steps: number of updates.
        linear_every: steps between measurements; a tenth of it in the first tenth.

    Returns:
        Input of `run_trainings`; each seed has its own weights, matrix A and inputs.

    Raises:
        InputError: if the depth is below 2.
    """
    if depth < 2:
        raise InputError(
            f"depth must be at least 2, got {depth}: probes measure the layers of the deep linear "
            "network that follow another."
        )
    return [
        Training(
            network="deep_linear",
            norm=norm,
            learning_rate=rate,
            steps=linear_steps,
            measured=measured_steps(linear_steps, linear_every),
            probes=tuple(probes),
            distances=LINEAR_DISTANCES,
            options={"depth": depth, "samples": samples},
        )
        for rate in rates
        for norm in norms
    ]


def measured_steps(steps: int, every: int) -> tuple[int, ...]:
    """Return measured steps, ten times as dense in the first tenth, where the loss falls most.

    >>> measured_steps(40, 20)
    (0, 2, 20)
    """
    dense = np.arange(0, steps // 10, max(1, every // 10))
    return tuple(np.unique([*dense, *range(0, steps, every)]).tolist())


def beside(vgg: xr.Dataset, linear: xr.Dataset) -> xr.Dataset:
    """Return both networks in one dataset, names and dimensions of the linear one prefixed.

    Args:
        vgg: variables of VGG, over step, layer and others.
        linear: those of the deep linear network; their names get the prefix ``linear_``.

    Returns:
        Both, sharing the normalizations and the seeds.
    """
    own = [name for name in _DIMENSIONS if name in linear.coords]
    names = {str(name): f"linear_{name}" for name in (*linear.data_vars, *own)}
    parts = [vgg, linear.rename(names)]
    return xr.merge(parts, compat="equals", join="outer", combine_attrs="drop_conflicts")


def linear_part(results: xr.Dataset) -> xr.Dataset:
    """Return the deep linear network's part of `beside` under the names without the prefix."""
    names = [str(name) for name in results.data_vars if str(name).startswith("linear_")]
    part = results[names]
    own = [name for name in _DIMENSIONS if f"linear_{name}" in part.coords]
    part = part.drop_vars([name for name in _DIMENSIONS if name in part.coords])
    return part.rename({f"linear_{name}": name for name in own}).rename(
        {name: name.removeprefix("linear_") for name in names}
    )
