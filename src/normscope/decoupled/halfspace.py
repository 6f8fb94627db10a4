"""The halfspace objective E phi(z'w) in length and direction, over samples or a Gaussian."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from normscope.decoupled.margin_losses import MarginLoss
from normscope.decoupled.signed_design import SignedDesign
from normscope.errors import InputError

__all__ = ["Direction", "GaussianObjective", "Objective", "SampleObjective"]

Array = NDArray[np.float64]

MOST_NODES = 256


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

    def flipped(self) -> Direction:
        """The opposite direction."""
        return Direction(-self.w, -self.moment, -self.mean, -self.margins)


class Objective(ABC):
    r"""What batch normalization makes of E phi(z'w): a function of direction and length.

    .. math:: f(w, \gamma) = E\,\phi(z^T \tilde w), \qquad \tilde w = \gamma w / |w|_S

    Reference: kohler2018, as told in the encyclopaedia article on batch normalization.

    Args:
        loss: phi.
        mean: u = E[z].
        largest: the largest eigenvalue of S.
        smallest: the smallest; None if not known.
        weights: of the samples or nodes, with sum one.
    """

    def __init__(
        self,
        loss: MarginLoss,
        mean: Array,
        largest: float,
        smallest: float | None,
        weights: Array,
    ) -> None:
        self.loss = loss
        self.mean = mean
        self.largest = largest
        self.smallest = smallest
        self.weights = weights

    @abstractmethod
    def direction(self, w: Array) -> Direction:
        """The direction of a vector; all zeros where |w|_S = 0."""

    @abstractmethod
    def gradient(self, direction: Direction, length: float) -> Array:
        """The gradient with respect to w_tilde."""

    def value(self, direction: Direction, length: float) -> float:
        """f(w, gamma)."""
        return float(self.weights @ self.loss.value(length * direction.margins))

    def length_slope(self, direction: Direction, length: float) -> float:
        """The partial derivative with respect to gamma."""
        slopes = self.loss.slope(length * direction.margins)
        return float(self.weights @ (slopes * direction.margins))

    def mean_slope(self, direction: Direction, length: float) -> float:
        """E phi'(z'w_tilde)."""
        return float(self.weights @ self.loss.slope(length * direction.margins))

    def mean_curvature(self, direction: Direction, length: float) -> float:
        """E phi''(z'w_tilde)."""
        return float(self.weights @ self.loss.curvature(length * direction.margins))

    def other_terms(self, direction: Direction, length: float) -> float:
        """What else stands beside u in the gradient; only units with neighbours have some."""
        del direction, length
        return 0.0


class SampleObjective(Objective):
    """The average over the samples.

    Args:
        design: the samples.
        loss: phi.
    """

    def __init__(self, design: SignedDesign, loss: MarginLoss) -> None:
        super().__init__(loss, design.mean, *design.spectrum, design.weights)
        self.design = design

    def direction(self, w: Array) -> Direction:
        """The direction of a vector; all zeros where |w|_S = 0."""
        margins = self.design.margins(w)
        norm = float(np.sqrt(self.weights @ margins**2))
        scale = 1 / norm if norm > 0 else 0.0
        unit = w * scale
        return Direction(
            unit, self.design.second_moment(unit), float(self.mean @ unit), margins * scale
        )

    def gradient(self, direction: Direction, length: float) -> Array:
        """The gradient with respect to w_tilde."""
        return self.design.adjoint(self.weights * self.loss.slope(length * direction.margins))


class GaussianObjective(Objective):
    r"""The expectation over Gaussian z with mean u and E[zz'] = S, by Gauss-Hermite quadrature.

    Along a direction with |w|_S = 1 the margin is a Gaussian of mean u'w and variance
    1 - (u'w)^2, so that one quadrature in one dimension is enough. By Stein's identity

    .. math:: \nabla f = (E\phi' - E\phi''\, u^T \tilde w)\, u + E\phi''\, S \tilde w

    where E phi'' is taken as E[phi' n]/std with the same nodes n: the exact gradient of the sum
    that stands for f.

    Reference: kohler2018, as told in the encyclopaedia article on batch normalization.

    Args:
        design: samples from which u and S are taken.
        loss: phi.
        nodes: of the quadrature, from 2 to 256.

    Raises:
        InputError: for another number of nodes.
    """

    def __init__(self, design: SignedDesign, loss: MarginLoss, nodes: int = 128) -> None:
        if not 2 <= nodes <= MOST_NODES:
            raise InputError(
                f"the quadrature needs 2 to {MOST_NODES} nodes, got {nodes}: the weights of the "
                "Gauss-Hermite rule with many more are too small for a number."
            )
        points, weights = np.polynomial.hermite_e.hermegauss(nodes)
        super().__init__(loss, design.mean, *design.spectrum, weights / weights.sum())
        self.nodes = points
        self.design = design

    def direction(self, w: Array) -> Direction:
        """The direction of a vector; all zeros where |w|_S = 0."""
        moment = self.design.second_moment(w)
        norm = float(np.sqrt(max(float(w @ moment), 0.0)))
        scale = 1 / norm if norm > 0 else 0.0
        mean = float(self.mean @ w) * scale
        spread = float(np.sqrt(max(1 - mean**2, 0.0)))
        return Direction(w * scale, moment * scale, mean, mean + spread * self.nodes)

    def gradient(self, direction: Direction, length: float) -> Array:
        """The gradient with respect to w_tilde."""
        curvature = self.mean_curvature(direction, length)
        own = self.mean_slope(direction, length) - curvature * length * direction.mean
        return np.asarray(own * self.mean + curvature * length * direction.moment)

    def mean_curvature(self, direction: Direction, length: float) -> float:
        """E phi''(z'w_tilde), by parts."""
        spread = length * float(np.sqrt(max(1 - direction.mean**2, 0.0)))
        if abs(spread) < 1e-6:  # by parts would divide zero by zero
            return super().mean_curvature(direction, length)
        slopes = self.loss.slope(length * direction.margins)
        return float(self.weights @ (slopes * self.nodes)) / spread
