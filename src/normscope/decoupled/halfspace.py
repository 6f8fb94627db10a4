"""The halfspace objective E phi(z'w) in length and direction, over samples or a Gaussian."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from normscope.decoupled.design import SignedDesign
from normscope.errors import ArgumentTypeError, InputError, ShapeError
from normscope.registry import unknown_name

Array = NDArray[np.float64]
Pointwise = Callable[[Array], Array]

MOST_NODES = 256  # of the quadrature
# Central differences of eighth order. At this spacing the first derivative of a function that
# varies over lengths of about one is accurate to 1e-13, the second to 1e-11.
_SPACING = 0.02
_FIRST = (4 / 5, -1 / 5, 4 / 105, -1 / 280)
_SECOND = (8 / 5, -1 / 5, 8 / 315, -1 / 560)
_SECOND_CENTRE = -205 / 72


@dataclass(frozen=True)
class MarginLoss:
    """A function of the margin m = z'w, which is negative for correctly classified samples.

    Args:
        value: of the margins, elementwise.
        slope: first derivative.
        curvature: second derivative.
        slope_bound: of the slope in magnitude; None if unknown.
        curvature_bound: of the curvature in magnitude; None if unknown.
        longest: default bound of the length, as the root mean square of the margins. A bounded
            loss of Gaussian margins decreases with the length without limit.
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
    """Return the loss of a name, or a smooth function with its derivatives by differences.

    Args:
        loss: "logistic", log(1 + exp(m)); "sigmoid", 1/(1 + exp(-m)); a :class:`MarginLoss`; or an
            elementwise function of a float64 array. It is called with m = -y x'w, which is
            negative for correctly classified samples, so that a loss increases with m. (Pass a
            function of the usual margin y x'w as ``lambda m: function(-m)``.) It is differentiated
            by central differences of eighth order, so it must be smooth over lengths of about one.

    Returns:
        The loss with its derivatives.

    Raises:
        UnknownNameError: for an unknown name.
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
    return _differentiate(loss)


def _differentiate(function: Callable[[Array], Any]) -> MarginLoss:
    """Return a function with its derivatives by central differences."""

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


@dataclass(frozen=True, eq=False)
class Direction:
    """A direction w with |w|_S = 1.

    Args:
        w: the vector.
        moment: S w.
        mean: u'w.
        margins: z'w of every sample or node.
    """

    w: Array
    moment: Array
    mean: float
    margins: Array

    def across(self, gradient: Array) -> Array:
        """Return the part of a gradient that turns the direction."""
        return np.asarray(gradient - (self.w @ gradient) * self.moment)

    def flip(self) -> Direction:
        """Return the opposite direction."""
        return Direction(-self.w, -self.moment, -self.mean, -self.margins)


class Objective(ABC):
    r"""The objective E phi(z'w) as a function of direction and length, as in batch normalization.

    .. math:: f(w, \gamma) = E\,\phi(z^T \tilde w), \qquad \tilde w = \gamma w / |w|_S

    Reference: kohler2018, as given in the encyclopaedia article on batch normalization.

    The attributes ``mean``, ``largest`` and ``smallest`` are u = E[z] and the largest and smallest
    eigenvalue of S; the smallest is None if unknown.

    Args:
        design: the samples.
        loss: phi.
        weights: of the samples or nodes, with sum one.
    """

    def __init__(self, design: SignedDesign, loss: MarginLoss, weights: Array) -> None:
        self.design, self.loss, self.weights = design, loss, weights
        self.mean = design.mean
        self.largest, self.smallest = design.moments.spectrum

    @abstractmethod
    def direction(self, w: Array) -> Direction:
        """Return the direction of a vector; all zeros if |w|_S = 0."""

    @abstractmethod
    def gradient(self, direction: Direction, length: float) -> Array:
        """Return the gradient with respect to w_tilde."""

    def value(self, direction: Direction, length: float) -> float:
        """Return f(w, gamma)."""
        return float(self.weights @ self.loss.value(length * direction.margins))

    def length_slope(self, direction: Direction, length: float) -> float:
        """Return the partial derivative with respect to gamma."""
        slopes = self.loss.slope(length * direction.margins)
        return float(self.weights @ (slopes * direction.margins))

    def mean_slope(self, direction: Direction, length: float) -> float:
        """Return E phi'(z'w_tilde)."""
        return float(self.weights @ self.loss.slope(length * direction.margins))

    def mean_curvature(self, direction: Direction, length: float) -> float:
        """Return E phi''(z'w_tilde)."""
        return float(self.weights @ self.loss.curvature(length * direction.margins))

    def other_terms(self, direction: Direction, length: float) -> float:
        """Return further factors of u in the gradient; only hidden units have some."""
        del direction, length
        return 0.0


class SampleObjective(Objective):
    """The average over the samples.

    Args:
        design: the samples.
        loss: phi.
    """

    def __init__(self, design: SignedDesign, loss: MarginLoss) -> None:
        super().__init__(design, loss, design.weights)

    def direction(self, w: Array) -> Direction:
        """Return the direction of a vector; all zeros if |w|_S = 0."""
        margins = self.design.margins(w)
        norm = float(np.sqrt(self.weights @ margins**2))
        scale = 1 / norm if norm > 0 else 0.0
        unit = w * scale
        return Direction(
            unit, self.design.second_moment(unit), float(self.mean @ unit), margins * scale
        )

    def gradient(self, direction: Direction, length: float) -> Array:
        """Return the gradient with respect to w_tilde."""
        return self.design.adjoint(self.weights * self.loss.slope(length * direction.margins))


class GaussianObjective(Objective):
    r"""The expectation over Gaussian z with mean u and E[zz'] = S, by Gauss-Hermite quadrature.

    Along a direction with |w|_S = 1 the margin is a Gaussian of mean u'w and variance
    1 - (u'w)^2, so that one quadrature in one dimension is enough. By Stein's identity

    .. math:: \nabla f = (E\phi' - E\phi''\, u^T \tilde w)\, u + E\phi''\, S \tilde w

    where E phi'' is E[phi' n]/std with the same nodes n, which makes it the exact gradient of the
    quadrature.

    Reference: kohler2018, as given in the encyclopaedia article on batch normalization.

    Args:
        design: samples from which u and S are taken.
        loss: phi.
        nodes: of the quadrature, from 2 to 256.

    Raises:
        InputError: if the number of nodes is out of range.
    """

    def __init__(self, design: SignedDesign, loss: MarginLoss, nodes: int = 128) -> None:
        if not 2 <= nodes <= MOST_NODES:
            raise InputError(
                f"the quadrature needs 2 to {MOST_NODES} nodes, got {nodes}: the weights of the "
                "Gauss-Hermite rule with many more underflow."
            )
        points, weights = np.polynomial.hermite_e.hermegauss(nodes)
        super().__init__(design, loss, weights / weights.sum())
        self.nodes = points

    def direction(self, w: Array) -> Direction:
        """Return the direction of a vector; all zeros if |w|_S = 0."""
        moment = self.design.second_moment(w)
        norm = float(np.sqrt(max(float(w @ moment), 0.0)))
        scale = 1 / norm if norm > 0 else 0.0
        mean = float(self.mean @ w) * scale
        spread = float(np.sqrt(max(1 - mean**2, 0.0)))
        return Direction(w * scale, moment * scale, mean, mean + spread * self.nodes)

    def gradient(self, direction: Direction, length: float) -> Array:
        """Return the gradient with respect to w_tilde."""
        curvature = self.mean_curvature(direction, length)
        own = self.mean_slope(direction, length) - curvature * length * direction.mean
        return np.asarray(own * self.mean + curvature * length * direction.moment)

    def mean_curvature(self, direction: Direction, length: float) -> float:
        """Return E phi''(z'w_tilde), by parts."""
        spread = length * float(np.sqrt(max(1 - direction.mean**2, 0.0)))
        if abs(spread) < 1e-6:  # by parts would be 0 / 0
            return super().mean_curvature(direction, length)
        slopes = self.loss.slope(length * direction.margins)
        return float(self.weights @ (slopes * self.nodes)) / spread
