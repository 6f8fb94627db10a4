"""The theory's critical learning rate beside a diagram, by every closure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from normscope.errors import InputError
from normscope.meanfield import CLOSURES, Prediction, predict
from normscope.meanfield.softmax import LOSSES, output_curvature
from normscope.sweeps.training_settings import Training

__all__ = ["NO_ANSWER", "critical_lines", "critical_rates", "why_unanswered"]

NO_ANSWER = "no_answer"  # attribute of the lines: why the theory of training has none

_SAMPLES = 512  # whose second moments stand for the data's


def critical_lines(settings: Mapping[str, Any], axes: Mapping[str, Sequence[Any]]) -> xr.DataArray:
    """The critical learning rate of every combination of settings, each by its own network.

    Args:
        settings: those that are the same everywhere.
        axes: the values of the others; the learning rate among them is no matter.

    Returns:
        (closure, axes without the learning rate), labelled by closure alone; not-a-number where the
        theory has no answer, and in the attribute ``no_answer`` why, if that is one reason.
    """
    own = {name: list(values) for name, values in axes.items() if name != "learning_rate"}
    others = {name: values for name, values in own.items() if name != "gamma"}
    shape = tuple(map(len, others.values()))
    rows, reasons = [], set()
    for values in product(*others.values()):
        training = Training.of({**settings, **dict(zip(others, values, strict=True))})
        scales = own.get("gamma", [training.gamma])
        rows.append(critical_rates(training, "gamma", scales))
        reasons |= why_unanswered(training, "gamma", scales, rows[-1])
    found = np.moveaxis(np.array(rows).reshape(*shape, len(CLOSURES), -1), -2, 0)
    attributes = {NO_ANSWER: reasons.pop()} if len(reasons) == 1 else {}
    labels, dims = {"closure": list(CLOSURES)}, ("closure", *others, "gamma")
    lines = xr.DataArray(found, labels, dims, attrs=attributes)
    return lines.transpose("closure", *own) if "gamma" in own else lines.squeeze("gamma")


def critical_rates(
    training: Training, axis: str, values: Sequence[float], closures: Sequence[str] = CLOSURES
) -> NDArray[np.float64]:
    r"""Learning rate at which training becomes unstable, for each value of a setting.

    .. math:: \eta^* = 2 (1 + \mu) / (\lambda_{\max} h)

    The second moments of the data replace those of iid normal inputs, except in the closure that
    is the paper to the letter.

    Reference: wei2018, Eq. (7). Notation: mu = momentum, h = the loss's second derivative by the
    outputs, of `normscope.meanfield.softmax.output_curvature`.

    Args:
        training: all other settings.
        axis: gamma, or an option of the model such as sigma_w2.
        values: of that setting.
        closures: of the theory.

    Returns:
        (closures, values); not-a-number where the theory has no answer.
    """
    return np.array([_rates(training, axis, values, closure) for closure in closures])


def why_unanswered(
    training: Training, axis: str, values: Sequence[float], rates: NDArray[np.float64]
) -> set[str]:
    """Why the theory of training (closure train) has no critical learning rate.

    Args:
        training: all other settings.
        axis: as for `critical_rates`.
        values: of that setting.
        rates: what `critical_rates` gave for all closures.

    Returns:
        Reasons in full sentences; none where it has a rate for every value.
    """
    if not np.isnan(rates[CLOSURES.index("train")]).any():
        return set()
    if training.loss not in LOSSES:
        return {f"it knows the losses {' and '.join(LOSSES)}, not {training.loss}."}
    try:
        found = _predictions(training, axis, values, "train")
    except InputError as error:
        return {str(error)}
    told = [pair for each in found for pair in _regimes(each)]
    return {reason for regime, reason in told if regime == "undetermined"}


def _regimes(found: Prediction) -> list[tuple[str, str]]:
    """Regime and reason, over a sweep for each gamma."""
    if isinstance(found.regime, str):
        return [(found.regime, str(found.reason))]
    return list(zip(found.regime, found.reason, strict=True))


def _rates(
    training: Training, axis: str, values: Sequence[float], closure: str
) -> NDArray[np.float64]:
    nothing = np.full(len(values), np.nan)
    if training.loss not in LOSSES:
        return nothing
    try:
        found = _predictions(training, axis, values, closure)
        rates = [_rate(each, training) for each in found]
    except InputError:
        return nothing  # a network that the closure does not cover
    return np.concatenate([np.atleast_1d(np.asarray(rate, dtype=float)) for rate in rates])


def _rate(found: Prediction, training: Training) -> NDArray[np.float64]:
    if found.lambda_max is None:
        return np.array(np.nan)
    curvature = output_curvature(training.loss, found, training.outputs)
    # over a sweep both are arrays, one number for each gamma
    return np.asarray(found.max_learning_rate(training.momentum), dtype=float) / curvature


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
