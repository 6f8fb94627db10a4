"""The theory's critical learning rate beside a diagram, by every closure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from normscope.errors import InputError
from normscope.meanfield import CLOSURES, Prediction, predict
from normscope.sweeps.training_cell import Training

__all__ = ["critical_rates", "output_curvature"]

_SAMPLES = 512  # whose second moments stand for the data's


def critical_rates(
    training: Training, axis: str, values: Sequence[float], closures: Sequence[str] = CLOSURES
) -> NDArray[np.float64]:
    r"""Learning rate at which training becomes unstable, for each value of a setting.

    .. math:: \eta^* = 2 (1 + \mu) / (\lambda_{\max} h)

    The second moments of the data replace those of iid normal inputs, except in the closure that
    is the paper to the letter.

    Reference: wei2018, Eq. (7). Notation: mu = momentum, h = the loss's second derivative by the
    outputs.

    Args:
        training: all other settings.
        axis: gamma, or an option of the model such as sigma_w2.
        values: of that setting.
        closures: of the theory.

    Returns:
        (closures, values); not-a-number where the theory has no answer.
    """
    return np.array([_rates(training, axis, values, closure) for closure in closures])


def output_curvature(loss: str, classes: int) -> float | None:
    """The loss's second derivative by the outputs at the start; None: not known.

    >>> output_curvature("squared_error", 10), output_curvature("cross_entropy", 10)
    (1.0, 0.1)
    """
    return {"squared_error": 1.0, "cross_entropy": 1 / max(1, classes)}.get(loss)


def _rates(
    training: Training, axis: str, values: Sequence[float], closure: str
) -> NDArray[np.float64]:
    nothing = np.full(len(values), np.nan)
    curvature = output_curvature(training.loss, len(training.data_set.classes))
    if curvature is None:
        return nothing
    try:
        found = _predictions(training, axis, values, closure)
    except InputError:
        return nothing  # a network that the closure does not cover
    rates = [each.max_learning_rate(training.momentum, curvature) for each in found]
    known = [np.nan if rate is None else rate for rate in rates]
    return np.concatenate([np.atleast_1d(np.asarray(rate, dtype=float)) for rate in known])


def _predictions(
    training: Training, axis: str, values: Sequence[float], closure: str
) -> list[Prediction]:
    """One prediction over all gammas, or one for each value of another setting."""
    inputs = training.data_set.train.x[:_SAMPLES]
    moments = None if closure == "printed" else inputs
    shape, size = tuple(inputs.shape[1:]), training.batch_size
    if axis == "gamma" and training.norm != "none":
        network, gammas = training.network(seed=0), np.asarray(values, dtype=float)
        return [predict(network, shape, closure, moments, gamma=gammas, batch_size=size)]
    networks = (_with_option(training, axis, value).network(seed=0) for value in values)
    return [predict(each, shape, closure, moments, batch_size=size) for each in networks]


def _with_option(training: Training, name: str, value: float) -> Training:
    if name == "gamma":
        return replace(training, gamma=value)
    return replace(training, options={**(training.options or {}), name: value})
