"""Halfspaces learned by GDNP, as a scikit-learn estimator."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from normscope.decoupled.design import SignedDesign, WhitenedMoment
from normscope.decoupled.gdnp import Minimum, Options, minimum
from normscope.decoupled.halfspace import GaussianObjective, Objective, SampleObjective, margin_loss
from normscope.errors import InputError
from normscope.registry import unknown_name

Array = NDArray[np.float64]
Self = TypeVar("Self", bound="OneVersusRest")

EXPECTATIONS = ("sample", "gaussian")
LENGTH_ACCURACY = 0.02  # of a length, as a share of the last residual


def signs_of(labels: Any, classes: Any) -> list[Array]:
    """Return +1 and -1 per sample: one vector for two classes, one per class for more.

    >>> signs_of(np.array([3, 5]), np.array([3, 5]))
    [array([-1.,  1.])]
    """
    positive = classes[1:] if len(classes) == 2 else classes
    return [np.where(labels == each, 1.0, -1.0) for each in positive]


def _is_logistic(estimator: Any) -> bool:
    return bool(isinstance(estimator.loss, str) and estimator.loss == "logistic")


class OneVersusRest(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # sklearn has no types
    """Base of both classifiers: one binary problem for two classes, one per class for more.

    Subclasses have an argument ``loss``.
    """

    def fit(self: Self, X: Any, y: Any) -> Self:  # noqa: N803  # scikit-learn's name
        """Fit the model.

        Args:
            X: (samples, features), dense or sparse.
            y: a class label for each sample.

        Returns:
            The estimator.
        """
        inputs, labels = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64)
        check_classification_targets(labels)
        self.classes_ = np.unique(labels)
        if len(self.classes_) < 2:
            raise InputError(
                f"{type(self).__name__} needs samples of at least two classes, got one class, "
                f"{self.classes_[0]!r}; a halfspace has two sides."
            )
        self._fit_binary(inputs, signs_of(labels, self.classes_))
        return self

    @abstractmethod
    def _fit_binary(self, inputs: Any, problems: list[Array]) -> None:
        """Fit one binary problem for each vector of signs."""

    @abstractmethod
    def _scores(self, inputs: Any) -> Array:
        """Return scores (samples, problems)."""

    def decision_function(self, X: Any) -> Array:  # noqa: N803  # scikit-learn's name
        """Return scores: positive for the second of two classes, or one column per class.

        Args:
            X: (samples, features), dense or sparse.

        Returns:
            (samples,) for two classes, (samples, classes) for more.
        """
        check_is_fitted(self)
        inputs = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        scores = self._scores(inputs)
        return np.asarray(scores[:, 0] if len(self.classes_) == 2 else scores)

    def predict(self, X: Any) -> Any:  # noqa: N803  # scikit-learn's name
        """Return the class of every sample.

        Args:
            X: (samples, features), dense or sparse.

        Returns:
            Labels (samples,).
        """
        scores = self.decision_function(X)
        chosen = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return self.classes_[chosen]

    @available_if(_is_logistic)  # type: ignore[untyped-decorator]  # sklearn has no types
    def predict_proba(self, X: Any) -> Array:  # noqa: N803  # scikit-learn's name
        """Return probabilities of the classes; only for the logistic loss.

        Args:
            X: (samples, features), dense or sparse.

        Returns:
            (samples, classes).
        """
        scores = expit(self.decision_function(X))
        if scores.ndim == 1:
            return np.stack([1 - scores, scores], axis=1)
        total = scores.sum(axis=1, keepdims=True)
        # all scores underflow: equal probabilities
        shares = scores / np.where(total > 0, total, 1)
        return np.asarray(np.where(total > 0, shares, 1 / scores.shape[1]))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class GDNPClassifier(OneVersusRest):
    r"""A linear classifier that learns length and direction of its weights separately.

    .. math:: \min_{w, \gamma}\; E\,\phi(z^T \tilde w), \quad
              \tilde w = \gamma w / |w|_S, \quad z = -y x, \quad S = E[x x^T]

    Each iteration takes a gradient step of the direction, with the article's step size corrected,
    and then finds the length by bisection. The inputs are whitened first, or their columns scaled
    to unit size if S is not formed, so that neither result nor steps depend on units. There is no
    penalty on the weights: on separable classes the logistic loss has no minimum and the length
    ends at ``max_length``. More than two classes are learned one against the rest.

    Degenerate input: a single class is an error. If u = E[z] = 0 (all classes have the same mean),
    the weights are zero, which is the minimum for a convex loss. Constant columns get no weight if
    there is an intercept. With fewer samples than features the weights stay in the span of the
    samples, with columns of unit size.

    Reference: kohler2018, as given in the encyclopaedia article on batch normalization.

    Args:
        loss: "logistic", "sigmoid", or a smooth elementwise function of m = z'w with bounded
            derivative, which increases with m: m is negative for correctly classified samples (see
            :func:`~normscope.decoupled.margin_loss`).
        max_iter: largest number of direction steps.
        tol: of the gradient's norm in S^{-1}, at which to stop. It does not depend on the scale
            of columns. If S is not formed (more than 512 columns, or more than samples), a lower
            bound of that norm.
        fit_intercept: centre the inputs and add a constant column, whose weight is the intercept.
        expectation: "sample", averages over the samples; "gaussian", over the Gaussian with the
            samples' moments, by Gauss-Hermite quadrature.
        quadrature_points: nodes of that quadrature, from 2 to 256.
        bisections: T_s, largest number of halvings per length.
        max_length: bound of the length, which is the root mean square of the decision values;
            None for 1000, or 10 for the sigmoid, whose best length is infinite for Gaussian z. A
            length that ends at the default bound while the objective still falls with it counts as
            not converged.
        safeguard: halve steps that would increase the objective; not needed for Gaussian z.

    Attributes:
        classes_: the labels.
        coef_: weights (1, features), or (classes, features) for more than two classes.
        intercept_: (1,) or (classes,).
        n_iter_: direction steps taken, at least 1; the largest over the classes.
        converged_: every problem ended within ``tol``; otherwise ``fit`` warns.
        at_bound_: some length is at its bound: the classes are separable or nearly so, or the loss
            is bounded.
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
        shared = WhitenedMoment(inputs, self.fit_intercept)  # the same for every class
        designs = [SignedDesign(shared, signs, self.fit_intercept) for signs in problems]
        found = [
            minimum(self._objective(each), options, self.max_iter, self.tol) for each in designs
        ]
        pairs = [
            each.moments.unscaled(one.weights) for each, one in zip(designs, found, strict=True)
        ]
        self.coef_ = np.stack([coefficients for coefficients, _ in pairs])
        self.intercept_ = np.array([intercept for _, intercept in pairs])
        self.n_iter_ = max(1, *(one.steps for one in found))
        self.converged_ = all(one.converged for one in found)
        self.at_bound_ = any(one.at_bound for one in found)
        self.objective_ = np.array([one.value for one in found])
        if not self.converged_:
            warnings.warn(self._shortfall(found), ConvergenceWarning, stacklevel=3)

    def _shortfall(self, found: list[Minimum]) -> str:
        """Return why the problem with the largest residual did not converge."""
        worst = max((one for one in found if not one.converged), key=lambda one: one.residual)
        if worst.steps >= self.max_iter:
            return (
                f"GDNP did not reach tol={self.tol:g} in {worst.steps} steps, its residual "
                f"is {worst.residual:.1e}; raise max_iter or tol."
            )
        if worst.at_bound and self.max_length is None:
            return (
                f"the length of the weights ended at its default bound of {worst.length:g} after "
                f"{worst.steps} steps, where the objective still falls with it (a residual of "
                f"{worst.residual:.1e}): it may have no minimum; pass max_length to choose the "
                "bound."
            )
        return (
            f"GDNP stopped after {worst.steps} steps at a residual of {worst.residual:.1e}, above "
            f"tol={self.tol:g}: no direction step lowers the objective; raise tol (and check the "
            "derivatives of a custom loss)."
        )

    def _objective(self, design: SignedDesign) -> Objective:
        """Return the objective by the expectation."""
        if self.expectation not in EXPECTATIONS:
            raise unknown_name("expectation", self.expectation, EXPECTATIONS)
        loss = margin_loss(self.loss)
        if self.expectation == "sample":
            return SampleObjective(design, loss)
        return GaussianObjective(design, loss, self.quadrature_points)

    def _scores(self, inputs: Any) -> Array:
        """Return scores (samples, problems)."""
        return np.asarray(inputs @ self.coef_.T + self.intercept_)
