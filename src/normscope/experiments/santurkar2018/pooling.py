"""Numbers over measured steps in one, each step with the weight of those it stands for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

__all__ = ["geometric_mean", "step_weights", "weighted_mean", "weighted_median"]


def step_weights(steps: np.ndarray) -> np.ndarray:
    """How many steps of training each measured one stands for: half the way to both neighbours.

    The first and the last stand for the whole way to their only neighbour, so that evenly spaced
    steps all weigh the same; one step alone weighs 1.

    Args:
        steps: at which was measured, increasing.

    Returns:
        A weight for each.

    >>> step_weights(np.array([0, 10, 20, 100]))
    array([10., 10., 45., 80.])
    >>> step_weights(np.array([7]))
    array([1.])
    """
    return np.gradient(steps.astype(float)) if len(steps) > 1 else np.ones(len(steps))


def weighted_median(values: xr.DataArray, dimensions: Sequence[str] = ("step",)) -> xr.DataArray:
    """The value with half of the weight on either side, or the middle of the two that share it.

    Args:
        values: over step and others; what is not a number is left out, infinite ones count.
        dimensions: over which, ``step`` among them.

    Returns:
        The medians; not a number where there is no value.

    >>> weighted_median(xr.DataArray([5.0, 1.0, 3.0], {"step": [0, 1, 9]}, "step")).item()
    3.0
    """
    weights = _weights(values).broadcast_like(values)
    core = [list(dimensions), list(dimensions)]
    found: xr.DataArray = xr.apply_ufunc(
        _median, values, weights, input_core_dims=core, vectorize=True
    )
    return found


def weighted_mean(values: xr.DataArray, dimensions: Sequence[str] = ("step",)) -> xr.DataArray:
    """The mean by the weights of steps; arguments and what is left out as in `weighted_median`."""
    return values.weighted(_weights(values)).mean(list(dimensions))


def geometric_mean(values: xr.DataArray, dimensions: Sequence[str] = ("step",)) -> xr.DataArray:
    """The geometric mean by the weights of steps; zeros, which would be all of it, are left out.

    Args:
        values: not negative, over step and others.
        dimensions: over which, ``step`` among them.

    Returns:
        The means; not a number where there is no positive value.

    >>> round(geometric_mean(xr.DataArray([2.0, 0.0, 8.0], dims="step")).item(), 12)
    4.0
    """
    positive = values.where(values > 0)
    mean = weighted_mean(positive.copy(data=np.log(positive.values)), dimensions)
    return mean.copy(data=np.exp(mean.values))


def _weights(values: xr.DataArray) -> xr.DataArray:
    """Of the steps at which any of the values was measured; 0 for the others."""
    others = [name for name in values.dims if name != "step"]
    measured = values.notnull().any(others).values
    weights = np.zeros(len(measured))
    weights[measured] = step_weights(values["step"].values[measured])
    return xr.DataArray(weights, {"step": values["step"]}, "step")


def _median(values: np.ndarray, weights: np.ndarray) -> float:
    known = ~np.isnan(values) & (weights > 0)
    if not known.any():
        return float("nan")
    order = np.argsort(values[known])
    ordered, below = values[known][order], np.cumsum(weights[known][order])
    half = below[-1] / 2
    first, last = np.searchsorted(below, half, "left"), np.searchsorted(below, half, "right")
    return float((ordered[first] + ordered[last]) / 2)
