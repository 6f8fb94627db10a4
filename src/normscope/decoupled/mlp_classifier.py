"""A network with one hidden tanh layer learned by GDNP, as a scikit-learn estimator."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from normscope.decoupled.classifier import OneVersusRest
from normscope.decoupled.design import SecondMoment, SignedDesign
from normscope.decoupled.gdnp import Options
from normscope.decoupled.halfspace import margin_loss
from normscope.decoupled.hidden_units import HiddenUnits, Trained, train_units
from normscope.errors import InputError
from normscope.registry import unknown_name

Array = NDArray[np.float64]

STARTS = ("random", "zero")
OUTPUTS = ("refit", "fixed")


class GDNPMLPClassifier(OneVersusRest):
    r"""A classifier with one hidden tanh layer, trained one hidden unit at a time.

    .. math:: F(x) = \sum_i \theta_i \tanh(x^T \tilde w^{(i)}), \qquad \min E\, l(-y F(x))

    In each sweep every unit is trained by GDNP while the others are fixed; then the outgoing
    weights are optimized, unless they are fixed. More than two classes are learned one against the
    rest.

    For Gaussian z = -yx the units of a joint critical point lie on one line, that of S^{-1}u, if
    the matrix of mean second derivatives by the units' margins is invertible there. The best joint
    minimum need not be such a point: if the matrix is singular, units may lie off the line. Trained
    unit by unit from zero, units reach the line; from random weights they may not
    (``alignment_``).

    Reference: kohler2018, as given in the encyclopaedia article on batch normalization.

    Args:
        hidden_units: number of hidden units.
        loss: l, as for :class:`~normscope.decoupled.GDNPClassifier`.
        max_iter: largest number of sweeps over all units.
        unit_steps: largest number of direction steps of a unit in one sweep.
        tol: decrease of the objective in a sweep at which to stop, if no unit has a step left that
            decreases it by more.
        fit_intercept: centre the inputs and add a constant column to them.
        output_weights: "refit" after each sweep, or "fixed" at one.
        start: "random" weights, or "zero", with the first direction -u.
        bisections: T_s, largest number of halvings per length.
        random_state: of the random start.

    Attributes:
        classes_: the labels.
        hidden_coef_: incoming weights (problems, units, features).
        hidden_intercept_: their biases (problems, units).
        output_coef_: theta (problems, units).
        n_iter_: sweeps, at least 1; the largest over the problems.
        converged_: every problem ended by ``tol``; otherwise ``fit`` warns.
        objective_: value of the objective for each problem.
        unit_paths_: for each problem, the :class:`~normscope.decoupled.UnitPath` of each unit in
            the first sweep: gradients, and their bound if z is Gaussian and the other units lie on
            the line.
        alignment_: cosines of the units with the line of S^{-1}u (problems, units).

    Examples:
        >>> X = np.array([[-2.0, 1.0], [-1.0, 0.0], [1.0, 0.5], [2.0, -1.0]])
        >>> model = GDNPMLPClassifier(hidden_units=2, max_iter=5, tol=1e-2).fit(X, [0, 0, 1, 1])
        >>> model.predict(X)
        array([0, 0, 1, 1])
    """

    def __init__(
        self,
        hidden_units: int = 8,
        loss: Any = "logistic",
        *,
        max_iter: int = 50,
        unit_steps: int = 10,
        tol: float = 1e-3,
        fit_intercept: bool = True,
        output_weights: str = "refit",
        start: str = "random",
        bisections: int = 60,
        random_state: Any = None,
    ) -> None:
        self.hidden_units = hidden_units
        self.loss = loss
        self.max_iter = max_iter
        self.unit_steps = unit_steps
        self.tol = tol
        self.fit_intercept = fit_intercept
        self.output_weights = output_weights
        self.start = start
        self.bisections = bisections
        self.random_state = random_state

    def _fit_binary(self, inputs: Any, problems: list[Array]) -> None:
        """Fit one binary problem for each vector of signs."""
        self._check()
        random = check_random_state(self.random_state)
        shared = SecondMoment(inputs, self.fit_intercept)  # the same for every class
        if not self.fit_intercept and not np.any(shared.variances):
            raise InputError(
                "all inputs are zero, so without an intercept there is nothing to learn; give "
                "inputs that vary, or fit_intercept=True."
            )
        designs = [SignedDesign(shared, signs, self.fit_intercept) for signs in problems]
        trained = [self._train(design, random) for design in designs]
        nets = [each.units for each in trained]
        pairs = [[net.design.moments.unscaled(w) for w in net.weights] for net in nets]
        self.hidden_coef_ = np.array([[w for w, _ in pair] for pair in pairs])
        self.hidden_intercept_ = np.array([[b for _, b in pair] for pair in pairs])
        self.output_coef_ = np.array([net.outputs for net in nets])
        self.objective_ = np.array([net.value() for net in nets])
        self.alignment_ = np.array([net.alignment() for net in nets])
        self.unit_paths_ = [each.first for each in trained]
        self.n_iter_ = max(each.sweeps for each in trained)
        self.converged_ = all(each.converged for each in trained)
        if not self.converged_:
            warnings.warn(
                f"the objective still fell, or can fall, by more than tol={self.tol:g} in sweep "
                f"{self.n_iter_}; raise max_iter or unit_steps, or standardize the inputs.",
                ConvergenceWarning,
                stacklevel=3,
            )

    def _check(self) -> None:
        if self.start not in STARTS:
            raise unknown_name("start", self.start, STARTS)
        if self.output_weights not in OUTPUTS:
            raise unknown_name("output_weights", self.output_weights, OUTPUTS)
        if min(self.hidden_units, self.max_iter, self.unit_steps) < 1 or not 0 <= self.tol < np.inf:
            raise InputError(
                "hidden_units, max_iter and unit_steps must be at least 1, tol finite and not "
                f"negative, got {self.hidden_units}, {self.max_iter}, {self.unit_steps} and "
                f"{self.tol}."
            )

    def _train(self, design: SignedDesign, random: np.random.RandomState) -> Trained:
        """Train the network of one binary problem."""
        shape = (self.hidden_units, design.size)
        drawn = random.standard_normal(shape)
        drawn[:, np.flatnonzero(design.moments.variances == 0)] = 0.0  # constant columns
        scale = np.sqrt([w @ design.second_moment(w) for w in drawn])[:, None]
        drawn /= np.where(scale > 0, scale, 1)
        starts = None
        if self.start == "zero":
            empty = np.linalg.norm(design.mean) <= 1e-13 * np.sqrt(design.moments.spectrum[0])
            starts = drawn if empty else np.tile(-design.mean, (self.hidden_units, 1))
        weights = drawn.copy() if starts is None else np.zeros(shape)
        return train_units(
            HiddenUnits(design, margin_loss(self.loss), weights, np.ones(self.hidden_units)),
            starts,
            Options(self.bisections),
            unit_steps=self.unit_steps,
            max_sweeps=self.max_iter,
            tol=self.tol,
            refit=self.output_weights == "refit",
        )

    def _scores(self, inputs: Any) -> Array:
        """Return scores (samples, problems)."""
        nets = zip(self.hidden_coef_, self.hidden_intercept_, self.output_coef_, strict=True)
        return np.stack(
            [np.tanh(np.asarray(inputs @ w.T) + bias) @ out for w, bias, out in nets], axis=1
        )
