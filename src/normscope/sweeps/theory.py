"""Mean-field critical learning rates of a phase diagram, by every closure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from normscope.errors import InputError
from normscope.meanfield import CLOSURES, Prediction, predict
from normscope.meanfield.output_curvature import LOSSES, output_curvature
from normscope.sweeps.settings import Training

NO_ANSWER = "no_answer"  # attribute of the lines: why the closure train has none

_SAMPLES = 512  # from which the second moments of the data are estimated


def critical_lines(settings: Mapping[str, Any], axes: Mapping[str, Sequence[Any]]) -> xr.DataArray:
    """Critical learning rate of every combination of settings.

    Args:
        settings: those that are the same everywhere.
        axes: the values of the others; the learning rate among them is ignored.

    Returns:
        (closure, axes without the learning rate), labelled by closure alone; NaN where the theory
        has no answer, with the reason in the attribute ``no_answer`` if there is just one.
    """
    axes = {name: list(values) for name, values in axes.items() if name != "learning_rate"}
    others = {name: values for name, values in axes.items() if name != "gamma"}
    shape = tuple(map(len, others.values()))
    rows, reasons = [], set()
    for values in product(*others.values()):
        training = Training.of({**settings, **dict(zip(others, values, strict=True))})
        gammas = axes.get("gamma", [training.gamma])
        rows.append(critical_rates(training, gammas))
        reasons |= _missing_rate_reasons(training, gammas, rows[-1])
    found = np.moveaxis(np.array(rows).reshape(*shape, len(CLOSURES), -1), -2, 0)
    attributes = {NO_ANSWER: reasons.pop()} if len(reasons) == 1 else {}
    labels, dims = {"closure": list(CLOSURES)}, ("closure", *others, "gamma")
    lines = xr.DataArray(found, labels, dims, attrs=attributes)
    return lines.transpose("closure", *axes) if "gamma" in axes else lines.squeeze("gamma")


def critical_rates(training: Training, gammas: Sequence[float]) -> NDArray[np.float64]:
    r"""Learning rate at which training becomes unstable, for each gamma.

    .. math:: \eta^* = 2 (1 + \mu) / (\lambda_{\max} h)

    The second moments of the data replace those of iid normal inputs, except in the closure
    ``printed``.

    Reference: wei2018, Eq. (7). Notation: mu = momentum, h = second derivative of the loss by the
    outputs, `normscope.meanfield.output_curvature.output_curvature`.

    Args:
        training: all other settings.
        gammas: initial scales of the normalization.

    Returns:
        (closures, gammas); NaN where the theory has no answer.
    """
    return np.array([_rates(training, gammas, closure) for closure in CLOSURES])


def _missing_rate_reasons(
    training: Training, gammas: Sequence[float], rates: NDArray[np.float64]
) -> set[str]:
    """Reasons why the closure train has no critical learning rate; empty if it has all."""
    if not np.isnan(rates[CLOSURES.index("train")]).any():
        return set()
    if training.loss not in LOSSES:
        return {f"it knows the losses {' and '.join(LOSSES)}, not {training.loss}."}
    try:
        found = _predictions(training, gammas, "train")
    except InputError as error:
        return {str(error)}
    return {
        reason for each in found for regime, reason in _regimes(each) if regime == "undetermined"
    }


def _regimes(found: Prediction) -> list[tuple[str, str]]:
    """Regime and reason, for each gamma."""
    if isinstance(found.regime, str):
        return [(found.regime, str(found.reason))]
    return list(zip(found.regime, found.reason, strict=True))


def _rates(training: Training, gammas: Sequence[float], closure: str) -> NDArray[np.float64]:
    nothing = np.full(len(gammas), np.nan)
    if training.loss not in LOSSES:
        return nothing
    try:
        rates = [_rate(each, training) for each in _predictions(training, gammas, closure)]
    except InputError:
        return nothing  # the closure does not cover this network
    return np.concatenate([np.atleast_1d(np.asarray(rate, dtype=float)) for rate in rates])


def _rate(found: Prediction, training: Training) -> NDArray[np.float64]:
    if found.lambda_max is None:
        return np.array(np.nan)
    curvature = output_curvature(training.loss, found, training.outputs)
    # both are arrays over several gammas
    return np.asarray(found.max_learning_rate(training.momentum), dtype=float) / curvature


def _predictions(training: Training, gammas: Sequence[float], closure: str) -> list[Prediction]:
    """One prediction over all gammas; without a normalization, which has no scale, one for each."""
    inputs = training.data_set.train.x[:_SAMPLES]
    moments = None if closure == "printed" else inputs
    given = training.network(seed=0), tuple(inputs.shape[1:]), closure, moments
    if training.norm == "none":
        return [predict(*given, batch_size=training.batch_size)] * len(gammas)
    scales = np.asarray(gammas, dtype=float)
    return [predict(*given, gamma=scales, batch_size=training.batch_size)]
