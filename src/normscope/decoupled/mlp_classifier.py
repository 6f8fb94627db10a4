"""A network with one hidden tanh layer, its units learned in turn by GDNP."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from normscope.decoupled.alternation import Trained, train_units
from normscope.decoupled.gdnp_options import Options
from normscope.decoupled.hidden_units import HiddenUnits
from normscope.decoupled.margin_losses import margin_loss
from normscope.decoupled.one_versus_rest import OneVersusRest
from normscope.decoupled.second_moment import SecondMoment
from normscope.decoupled.signed_design import SignedDesign
from normscope.errors import InputError
from normscope.registry import unknown_name

__all__ = ["GDNPMLPClassifier"]

Array = NDArray[np.float64]

STARTS = ("random", "zero")
OUTPUTS = ("refit", "fixed")


class GDNPMLPClassifier(OneVersusRest):
    r"""A classifier with one hidden tanh layer, trained one hidden unit at a time.

    .. math:: F(x) = \sum_i \theta_i \tanh(x^T \tilde w^{(i)}), \qquad \min E\, l(-y F(x))

    In each sweep every unit takes its turn at GDNP while the others are held fixed; then, if asked
    for, the outgoing weights are chosen anew. More than two classes are learned one against the
    rest.

    For Gaussian z = -yx the units of a joint critical point lie on one line, that of S^{-1}u, if
    the matrix of mean second derivatives by the units' margins is invertible there. The best joint
    minimum need not be such a point: where the matrix is singular, units may lie off the line. Unit
    by unit from zero the path leads to the line; from random weights it may end before
    (``alignment_``).

    Reference: kohler2018, as told in the encyclopaedia article on batch normalization.

    Args:
        hidden_units: how many.
        loss: l, as for :class:`~normscope.decoupled.GDNPClassifier`.
        max_iter: sweeps over all units, at most.
        unit_steps: direction steps of a unit in one sweep, at most.
        tol: end when a sweep lowers the objective by no more than this.
        fit_intercept: centre the inputs and add a constant column to them.
        output_weights: "refit" after each sweep, or "fixed" at one.
        start: "random" weights, or "zero": every unit from nothing, in the direction -u first.
        bisections: T_s, halvings per length, at most.
        random_state: of the random start.

    Attributes:
        classes_: the labels.
        hidden_coef_: incoming weights (problems, units, features).
        hidden_intercept_: their biases (problems, units).
        output_coef_: theta (problems, units).
        n_iter_: sweeps, at least 1; the most over the problems.
        converged_: every problem ended by ``tol``.
        objective_: value of the objective for each problem.
        unit_paths_: for each problem, the first turn of each unit:
            :class:`~normscope.decoupled.UnitPath`, gradient beside the bound it keeps to if z is
            Gaussian and its neighbours lie on the line.
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
        pairs = [[net.design.unscaled(w) for w in net.weights] for net in nets]
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
                f"the objective still fell by more than tol={self.tol:g} in sweep "
                f"{self.n_iter_}; raise max_iter or unit_steps.",
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
        """The network for one binary problem."""
        shape = (self.hidden_units, design.size)
        drawn = random.standard_normal(shape)
        drawn[:, np.flatnonzero(design.moments.variances == 0)] = 0.0  # columns of no use
        scale = np.sqrt([w @ design.second_moment(w) for w in drawn])[:, None]
        drawn /= np.where(scale > 0, scale, 1)
        starts = None
        if self.start == "zero":
            empty = np.linalg.norm(design.mean) <= 1e-13 * np.sqrt(design.spectrum[0])
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
        """Scores (samples, problems)."""
        nets = zip(self.hidden_coef_, self.hidden_intercept_, self.output_coef_, strict=True)
        return np.stack(
            [np.tanh(np.asarray(inputs @ w.T) + bias) @ out for w, bias, out in nets], axis=1
        )
