"""Figures that show VGG and the deep linear network side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import xarray as xr

from normscope.experiments.recipe import SCALES as NAMES
from normscope.experiments.recipe import Measurement, Progress
from normscope.experiments.santurkar2018 import deep_linear, vgg
from normscope.experiments.santurkar2018.trainings import named_like, trained
from normscope.results import Store

__all__ = ["SCALES", "beside", "linear_part", "on_both"]

SCALES: Mapping[str, Mapping[str, Any]] = {
    name: {**vgg.SCALES[name], **deep_linear.SCALES[name]} for name in NAMES
}
_OWN = ("step", "layer", "distance", "learning_rate")


def on_both(
    norms: Sequence[str],
) -> Callable[[Callable[[xr.Dataset], xr.Dataset]], Measurement]:
    """Decorator: a measurement from what it selects of both networks' trainings.

    The selection is made twice, once of each network. Its settings are those of
    `vgg.on_vgg` and `deep_linear.on_deep_linear` together.

    Args:
        norms: normalizations it needs.

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
            depth: int = 25,
            samples: int = 1000,
            linear_steps: int = 10_000,
            linear_every: int = 500,
            seeds: int = 3,
            seed: int = 0,
            store: Store,
            progress: Progress,
        ) -> xr.Dataset:
            shape: dict[str, Any] = {"data": data, "width": width, "steps": steps}
            often: dict[str, Any] = {"linear_steps": linear_steps, "linear_every": linear_every}
            both = (  # all settings are looked at before the first training
                vgg.vgg_trainings(norms, every=every, evaluated=evaluated, **shape),
                deep_linear.deep_linear_trainings(norms, depth=depth, samples=samples, **often),
            )
            found = (trained(each, range(seed, seed + seeds), store, progress) for each in both)
            one, other = (select(each.isel(learning_rate=0)) for each in found)
            return beside(one, other, shape)

        return named_like(measure, select)

    return decorate


def beside(
    convolutional: xr.Dataset, linear: xr.Dataset, settings: Mapping[str, Any] | None = None
) -> xr.Dataset:
    """Both networks in one dataset: the deep linear one's names and dimensions get ``linear_``.

    Args:
        convolutional: variables of VGG, over step, layer and others.
        linear: those of the deep linear network.
        settings: to be kept as attributes.

    Returns:
        Both, sharing the normalizations and the seeds.
    """
    own = [name for name in _OWN if name in linear.coords]
    names = {str(name): f"linear_{name}" for name in (*linear.data_vars, *own)}
    merged = xr.merge(
        [convolutional, linear.rename(names)],
        compat="equals",
        join="outer",
        combine_attrs="drop_conflicts",
    )
    return merged.assign_attrs(settings or {})


def linear_part(results: xr.Dataset) -> xr.Dataset:
    """The deep linear network's part of `beside`, under the usual names."""
    names = [str(name) for name in results.data_vars if str(name).startswith("linear_")]
    part = results[names]
    own = [name for name in _OWN if f"linear_{name}" in part.coords]
    part = part.drop_vars([name for name in _OWN if name in part.coords])
    return part.rename({f"linear_{name}": name for name in own}).rename(
        {name: name.removeprefix("linear_") for name in names}
    )
