"""A halfspace learned by GDNP, as a scikit-learn estimator."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from normscope.decoupled.gdnp import Iterate, gdnp
from normscope.decoupled.gdnp_options import Options
from normscope.decoupled.halfspace import GaussianObjective, Objective, SampleObjective
from normscope.decoupled.margin_losses import margin_loss
from normscope.decoupled.one_versus_rest import OneVersusRest
from normscope.decoupled.second_moment import SecondMoment
from normscope.decoupled.signed_design import SignedDesign
from normscope.errors import InputError
from normscope.registry import unknown_name

__all__ = ["GDNPClassifier", "Minimum", "minimum"]

Array = NDArray[np.float64]

EXPECTATIONS = ("sample", "gaussian")
LENGTH_ACCURACY = 0.02  # of the last residual
_NO_MEAN = 1e-13  # of |u| over sqrt(L): nothing but rounding


@dataclass(frozen=True, eq=False)
class Minimum:
    """Where GDNP ended.

    Args:
        weights: w_tilde.
        converged: the residual is within the tolerance.
        at_bound: the length was stopped by its bound.
        steps: of the direction.
        value: of the objective.
        residual: norm of the gradient over sqrt(L).
    """

    weights: Array
    converged: bool
    at_bound: bool
    steps: int
    value: float
    residual: float


def minimum(
    objective: Objective, options: Options, max_iter: int, tol: float, start: Array | None = None
) -> Minimum:
    """Run GDNP until its residual is within the tolerance.

    At u = 0 no direction is better than another. For a convex loss zero is the minimum then, and
    zero is the answer.

    Args:
        objective: what is minimized.
        options: how GDNP runs.
        max_iter: direction steps, at most.
        tol: of the gradient's norm over sqrt(L).
        start: first direction; None for -u, which is where gradient descent from zero goes first.

    Returns:
        The weights and how they were reached.
    """
    size = float(np.linalg.norm(objective.mean))
    if size <= _NO_MEAN * float(np.sqrt(objective.largest)):
        nowhere = objective.direction(np.zeros_like(objective.mean))
        return Minimum(nowhere.w, True, False, 0, objective.value(nowhere, 0.0), 0.0)
    last: Iterate | None = None
    for last in gdnp(objective, -objective.mean if start is None else start, options):
        if last.residual <= tol or last.step >= max_iter:
            break
    assert last is not None  # the path has at least its start
    done = last.residual <= tol
    at_bound = last.bisected.at_bound
    return Minimum(last.weights, done, at_bound, last.step, last.value, last.residual)


class GDNPClassifier(OneVersusRest):
    r"""A linear classifier: length and direction of its weights learned apart from each other.

    .. math:: \min_{w, \gamma}\; E\,\phi(z^T \tilde w), \quad
              \tilde w = \gamma w / |w|_S, \quad z = -y x, \quad S = E[x x^T]

    Each step turns the direction by a gradient step of the article's length, corrected, and then
    finds the length by bisection. There is no penalty on the weights: on separable classes the
    logistic loss has no minimum and the length ends at ``max_length``. More than two classes are
    learned one against the rest.

    Degenerate input: one class is an error. Where u = E[z] = 0 (no class has its own mean) the
    weights are zero, which is the minimum for a convex loss. Constant columns get no weight
    beside an intercept. With fewer samples than features the weights stay in the span of the
    samples.

    Reference: kohler2018, as told in the encyclopaedia article on batch normalization.

    Args:
        loss: "logistic", "sigmoid", or a smooth elementwise function of m = z'w with bounded
            derivative, which rises with m: m is negative where a sample is on its right side (see
            :func:`~normscope.decoupled.margin_loss`).
        max_iter: direction steps, at most.
        tol: end when the gradient's norm over sqrt(L) is at most this.
        fit_intercept: centre the inputs and add a constant column, whose weight is the intercept.
        expectation: "sample", averages over the samples; "gaussian", over the Gaussian with the
            samples' moments, by Gauss-Hermite quadrature.
        quadrature_points: nodes of that quadrature, from 2 to 256.
        bisections: T_s, halvings per length, at most.
        max_length: bound of the length, which is the root mean square of the decision values;
            None for 1000, or 10 for the sigmoid, whose best length is infinite for Gaussian z.
        safeguard: halve steps that would raise the objective; never needed for Gaussian z.

    Attributes:
        classes_: the labels.
        coef_: weights (1, features), or (classes, features) for more than two classes.
        intercept_: (1,) or (classes,).
        n_iter_: direction steps taken, at least 1; the most over the classes.
        converged_: every problem ended within ``tol``.
        at_bound_: some length ended at its bound: the classes are separable, or nearly so.
        objective_: value of the objective for each problem.

    Examples:
        >>> X = np.array([[-2.0], [-1.0], [0.5], [-0.5], [1.0], [2.0]])
        >>> model = GDNPClassifier().fit(X, [0, 0, 0, 1, 1, 1])
        >>> model.predict([[-3.0], [3.0]]), model.converged_
        (array([0, 1]), True)
    """

    def __init__(
        self,
        loss: Any = "logistic",
        *,
        max_iter: int = 10_000,
        tol: float = 1e-8,
        fit_intercept: bool = True,
        expectation: str = "sample",
        quadrature_points: int = 128,
        bisections: int = 60,
        max_length: float | None = None,
        safeguard: bool = True,
    ) -> None:
        self.loss = loss
        self.max_iter = max_iter
        self.tol = tol
        self.fit_intercept = fit_intercept
        self.expectation = expectation
        self.quadrature_points = quadrature_points
        self.bisections = bisections
        self.max_length = max_length
        self.safeguard = safeguard

    def _fit_binary(self, inputs: Any, problems: list[Array]) -> None:
        """Fit one binary problem for each vector of signs."""
        if self.max_iter < 1 or not 0 <= self.tol < np.inf:
            raise InputError(
                "max_iter must be at least 1, tol finite and not negative, got "
                f"{self.max_iter} and {self.tol}."
            )
        options = Options(
            self.bisections,
            self.max_length,
            safeguard=self.safeguard,
            length_tolerance=self.tol / 10,
            length_accuracy=LENGTH_ACCURACY,
        )
        shared = SecondMoment(inputs, self.fit_intercept)  # the same for every class
        designs = [SignedDesign(shared, signs, self.fit_intercept) for signs in problems]
        found = [
            minimum(self._objective(each), options, self.max_iter, self.tol) for each in designs
        ]
        pairs = [each.unscaled(one.weights) for each, one in zip(designs, found, strict=True)]
        self.coef_ = np.stack([coefficients for coefficients, _ in pairs])
        self.intercept_ = np.array([intercept for _, intercept in pairs])
        self.n_iter_ = max(1, *(one.steps for one in found))
        self.converged_ = all(one.converged for one in found)
        self.at_bound_ = any(one.at_bound for one in found)
        self.objective_ = np.array([one.value for one in found])
        if not self.converged_:
            warnings.warn(self._shortfall(found), ConvergenceWarning, stacklevel=3)

    def _shortfall(self, found: list[Minimum]) -> str:
        """Why it did not converge, for the problem that fell shortest."""
        worst = max((one for one in found if not one.converged), key=lambda one: one.residual)
        if worst.steps >= self.max_iter:
            return (
                f"GDNP did not come within tol={self.tol:g} in {worst.steps} steps, its residual "
                f"is {worst.residual:.1e}; standardize the inputs or raise max_iter."
            )
        return (
            f"GDNP stopped by itself after {worst.steps} steps at a residual of "
            f"{worst.residual:.1e}, above tol={self.tol:g}: no step of the direction lowers the "
            "objective any more; standardize the inputs or raise tol (and check the derivatives of "
            "a loss of your own)."
        )

    def _objective(self, design: SignedDesign) -> Objective:
        """The expectation that was asked for."""
        if self.expectation not in EXPECTATIONS:
            raise unknown_name("expectation", self.expectation, EXPECTATIONS)
        loss = margin_loss(self.loss)
        if self.expectation == "sample":
            return SampleObjective(design, loss)
        return GaussianObjective(design, loss, self.quadrature_points)

    def _scores(self, inputs: Any) -> Array:
        """Scores (samples, problems)."""
        return np.asarray(inputs @ self.coef_.T + self.intercept_)
