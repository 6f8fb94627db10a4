"""Losses of a margin, with the two derivatives that the decoupled methods ask for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from normscope.errors import ArgumentTypeError, ShapeError
from normscope.registry import unknown_name

__all__ = ["MarginLoss", "margin_loss"]

Array = NDArray[np.float64]
Pointwise = Callable[[Array], Array]

# Central differences of eighth order: at this spacing a function that varies over lengths of about
# one has its first derivative to 1e-13 and its second to 1e-11.
_SPACING = 0.02
_FIRST = (4 / 5, -1 / 5, 4 / 105, -1 / 280)
_SECOND = (8 / 5, -1 / 5, 8 / 315, -1 / 560)
_SECOND_CENTRE = -205 / 72


@dataclass(frozen=True)
class MarginLoss:
    """A function of the margin m = z'w (negative where the sample is on its right side).

    Args:
        value: of the margins, elementwise.
        slope: first derivative.
        curvature: second derivative.
        slope_bound: a number that the slope never exceeds in magnitude; None if not known.
        curvature_bound: the same for the curvature.
        longest: how long the weights may become by default, as the root mean square of the
            margins. A bounded loss of Gaussian margins falls with the length for ever.
    """

    value: Pointwise
    slope: Pointwise
    curvature: Pointwise
    slope_bound: float | None = None
    curvature_bound: float | None = None
    longest: float = 1000.0


def _sigmoid_slope(margins: Array) -> Array:
    return np.asarray(expit(margins) * expit(-margins))


def _sigmoid_curvature(margins: Array) -> Array:
    return np.asarray(_sigmoid_slope(margins) * np.tanh(-margins / 2))


_LOSSES = {
    "logistic": MarginLoss(lambda m: np.logaddexp(0.0, m), expit, _sigmoid_slope, 1.0, 0.25),
    "sigmoid": MarginLoss(
        expit, _sigmoid_slope, _sigmoid_curvature, 0.25, float(np.sqrt(3) / 18), 10.0
    ),
}


def margin_loss(loss: str | MarginLoss | Pointwise) -> MarginLoss:
    """The loss of that name, or a smooth function with its derivatives by differences.

    Args:
        loss: "logistic", log(1 + exp(m)); "sigmoid", 1/(1 + exp(-m)); a :class:`MarginLoss`; or an
            elementwise function of a float64 array. It is given m = -y x'w, which is negative
            where the sample is on its right side: a loss rises with m. (A function of the usual
            margin y x'w goes in as ``lambda m: function(-m)``.) It is differentiated by central
            differences of eighth order, so it must be smooth over lengths of about one.

    Returns:
        The loss with its derivatives.

    Raises:
        UnknownNameError: for a name that is not among them.
        ArgumentTypeError: if it is neither a name nor callable.

    >>> float(margin_loss("logistic").slope(np.zeros(1))[0])
    0.5
    >>> bool(abs(margin_loss(np.sin).slope(np.zeros(1))[0] - 1) < 1e-13)
    True
    """
    if isinstance(loss, MarginLoss):
        return loss
    if isinstance(loss, str):
        if loss not in _LOSSES:
            raise unknown_name("loss", loss, _LOSSES)
        return _LOSSES[loss]
    if not callable(loss):
        raise ArgumentTypeError(
            f"loss must be a name, a MarginLoss or a function of the margins, got "
            f"{type(loss).__name__}; try loss='logistic'."
        )
    return _differenced(loss)


def _differenced(function: Callable[[Array], Any]) -> MarginLoss:
    """A function with its derivatives by central differences."""

    def value(margins: Array) -> Array:
        values = np.asarray(function(margins), dtype=np.float64)
        if values.shape != margins.shape:
            raise ShapeError(
                f"the loss must return one value per margin, expected shape {margins.shape}, "
                f"got {values.shape}; write it elementwise."
            )
        return values

    def sides(margins: Array, step: int) -> tuple[Array, Array]:
        return value(margins + step * _SPACING), value(margins - step * _SPACING)

    def slope(margins: Array) -> Array:
        pairs = [(c, *sides(margins, k)) for k, c in enumerate(_FIRST, 1)]
        return np.asarray(sum(c * (right - left) for c, right, left in pairs) / _SPACING)

    def curvature(margins: Array) -> Array:
        pairs = [(c, *sides(margins, k)) for k, c in enumerate(_SECOND, 1)]
        total = _SECOND_CENTRE * value(margins) + sum(c * (a + b) for c, a, b in pairs)
        return np.asarray(total / _SPACING**2)

    return MarginLoss(value, slope, curvature)
