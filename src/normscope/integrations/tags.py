"""What a scope measured as single numbers with names, and as histograms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from normscope.integrations.logger import HistogramLogger, Logger

__all__ = ["Histogram", "Scalar", "histograms", "scalars"]

_ALWAYS = ("loss",)  # NaN there is a value, elsewhere nothing was measured
_BINNED = ("histogram", "histogram_low", "histogram_high")


@dataclass(frozen=True)
class Scalar:
    """One number.

    Args:
        tag: its name.
        value: the number.
        step: of the training.
    """

    tag: str
    value: float
    step: int

    def send(self, logger: Logger, step: int) -> None:
        """Give it to a logger.

        Args:
            logger: where to.
            step: what the logger calls its step.
        """
        logger.add_scalar(self.tag, self.value, step)


@dataclass(frozen=True, eq=False)
class Histogram:
    """The activations of one unit, counted.

    Args:
        tag: its name.
        edges: of the bins, one more than there are counts.
        counts: in the bins.
        step: of the training.
    """

    tag: str
    edges: np.ndarray
    counts: np.ndarray
    step: int

    def send(self, logger: Logger, step: int) -> None:
        """Give it to a logger that takes histograms, or to none.

        Sum and sum of squares take each value at the middle of its bin.

        Args:
            logger: where to.
            step: what the logger calls its step.
        """
        if not isinstance(logger, HistogramLogger):
            return
        middles = (self.edges[1:] + self.edges[:-1]) / 2
        logger.add_histogram_raw(
            self.tag,
            min=float(self.edges[0]),
            max=float(self.edges[-1]),
            num=int(self.counts.sum()),
            sum=float(self.counts @ middles),
            sum_squares=float(self.counts @ middles**2),
            bucket_limits=self.edges[1:].tolist(),
            bucket_counts=self.counts.tolist(),
            global_step=step,
        )


def scalars(results: xr.Dataset, prefix: str = "scope", details: bool = False) -> Iterator[Scalar]:
    """The numbers of a scope's results, step by step.

    A number is called ``scope/loss``, or ``scope_gradient_norm/net.0`` if there is one for each
    layer: TensorBoard and others make one group of all that has the same beginning. What was not
    measured has no number.

    Args:
        results: of a scope, or a part of its steps.
        prefix: of every name.
        details: whether values along the gradient's ray and of single units come one by one;
            without, the ray is left to its ``_low`` and ``_high``, and units are averaged.

    Yields:
        The numbers.

    >>> norms = (("step", "layer"), [[2.0, np.nan]])
    >>> results = xr.Dataset({"gradient_norm": norms}, {"step": [7], "layer": ["a", "b"]})
    >>> list(scalars(results))
    [Scalar(tag='scope_gradient_norm/a', value=2.0, step=7)]
    """
    columns = [
        (names, values, name in _ALWAYS)
        for name, variable in results.data_vars.items()
        if name not in _BINNED
        for names, values in _columns(str(name), variable, prefix, details)
    ]
    for place, step in enumerate(results["step"].values.tolist() if columns else ()):
        for names, values, always in columns:
            for tag, value in zip(names, values[place].tolist(), strict=True):
                if always or not np.isnan(value):
                    yield Scalar(tag, value, step)


def histograms(results: xr.Dataset, prefix: str = "scope") -> Iterator[Histogram]:
    """The counted activations in a scope's results, if its probes count any.

    Args:
        results: of a scope, or a part of its steps.
        prefix: of every name.

    Yields:
        One histogram for each step and unit.
    """
    if "histogram" not in results:
        return
    counts = results["histogram"].values
    ends = results["histogram_low"].values, results["histogram_high"].values
    tags = _names(results["histogram"].isel(step=0, bin=0), f"{prefix}_activation")
    for place, step in enumerate(results["step"].values.tolist()):
        flat = counts[place].reshape(len(tags), -1)
        rows = zip(tags, flat, *(end[place].ravel() for end in ends), strict=True)
        for tag, row, low, high in rows:
            if np.isfinite(row).all():
                yield Histogram(tag, np.linspace(low, high, len(row) + 1), row, step)


def _columns(
    name: str, variable: xr.DataArray, prefix: str, details: bool
) -> Iterator[tuple[list[str], np.ndarray]]:
    """Names, and values (step, name)."""
    if not details:
        if "distance" in variable.dims:
            return
        if "unit" in variable.dims:
            variable = _unit_mean(variable)
    if variable.ndim == 1:
        yield [f"{prefix}/{name}"], variable.values[:, None]
    elif variable.size:
        tags = _names(variable.isel(step=0), f"{prefix}_{name}")
        yield tags, variable.transpose("step", ...).values.reshape(-1, len(tags))


def _unit_mean(variable: xr.DataArray) -> xr.DataArray:
    """Mean over the units there are; by hand, since xarray warns where there is none."""
    present = variable.notnull()
    count = present.sum("unit")
    return variable.fillna(0).sum("unit").where(count > 0) / count.where(count > 0)


def _names(values: xr.DataArray, stem: str) -> list[str]:
    """One name for each value: the stem, then a part for each dimension."""
    names = [stem]
    for dimension in values.dims:
        labels = [_part(str(dimension), each) for each in values[dimension].values.tolist()]
        names = [f"{name}/{label}" for name in names for label in labels]
    return names


def _part(dimension: str, label: Any) -> str:
    if isinstance(label, str):
        return label or "model"  # the module that owns weights itself has no name
    return f"{dimension}_{label:g}"
