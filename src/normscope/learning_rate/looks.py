"""Looks at the curvature: here, where the first steps of training lead, and beyond a plateau."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable

from torch import Tensor

from normscope.curvature.operator import CurvatureOperator
from normscope.curvature.result import TopEigenvalue
from normscope.curvature.search import Request
from normscope.curvature.top_eigenvalue import extreme_eigenvalues
from normscope.errors import NormscopeError, NormscopeWarning
from normscope.learning_rate.plateau import off_the_plateau
from normscope.learning_rate.preconditioner import Preconditioner, preconditioned_eigenvalue
from normscope.learning_rate.rules import UpdateRule
from normscope.learning_rate.walk import Walk, Walks
from normscope.problem.evaluate import Evaluator
from normscope.problem.parameters import ParameterLayout

__all__ = ["Looks", "Measure", "Tell"]

Tell = Callable[[str], None]
_TOLERANCE = 0.01  # on the residual; batches differ by more
_MAX_PRODUCTS = 80
_AFTER = (1, 4, 16)  # steps after which the curvature is measured again
_HALVINGS = 6  # of the rate of one look, until its steps do not break the loss


class Looks:
    """Looks at the curvature where the first steps lead."""

    def __init__(self, measure: Measure, rule: UpdateRule) -> None:
        self._measure, self._rule = measure, rule
        self.unbroken = math.inf

    def ahead(
        self, walks: Walks, steepest: float, tell: Tell = lambda text: None
    ) -> tuple[list[float], bool]:
        """After one, four and sixteen steps, each time at the bound of what was seen before.

        If such steps break the loss, the rate has proved too large, and the curvature there is not
        that of any training: the rate is halved and the look repeated.

        Args:
            walks: from where.
            steepest: largest curvature there.
            tell: called with a text as each part begins.

        Returns:
            The curvatures, and whether the last steps lowered the loss; true if none were taken.
        """
        seen: list[float] = []
        fallen = True
        for steps in _AFTER:
            rate = self._rule.largest_stable_rate(max([steepest, *seen]))
            if math.isfinite(rate):
                tell(f"curvature after {steps} step{'s' * (steps > 1)}")
                walk = self._unbroken_walk(walks, steps, rate)
                seen += [] if walk.is_broken else self._measure.tried(walk.here())
                fallen = walk.has_fallen()
        return seen, fallen

    def _unbroken_walk(self, walks: Walks, steps: int, rate: float) -> Walk:
        """So many steps at a rate, or at the largest half of it that does not break the loss."""
        walk = Walk(walks, self._rule, min(rate, self.unbroken)).take(steps)
        for _ in range(_HALVINGS):
            if not walk.is_broken:
                break
            self.unbroken = walk.rate / 2
            walk = Walk(walks, self._rule, self.unbroken).take(steps)
        return walk

    def beyond_plateau(self, walks: Walks, steepest: float) -> list[float]:
        """Where a loss that stood still has begun to fall, and after steps from there.

        Nothing is told: who counts the parts of an advice does not know of a plateau.
        """
        if steepest <= 0:
            return []
        walk = off_the_plateau(walks, steepest)
        if walk is None:
            return []
        left = walks.beginning_at(walk.taken, walk.point)
        found = self._measure.tried(left.evaluator(0))
        return [*found, *self.ahead(left, max([*found, 0.0]))[0]]


class Measure:
    """Searches one after another, each started from the last one's direction."""

    def __init__(self, kind: str, preconditioner: Preconditioner | None, seed: int) -> None:
        self.kind, self._preconditioner, self._seed = kind, preconditioner, seed
        self._direction: Tensor | None = None
        self._steepest: Tensor | None = None
        self.values: list[float] = []
        self.products, self.converged = 0.0, True

    def add(self, evaluator: Evaluator) -> None:
        """The value at the present weights, on one more batch."""
        value, vector = self._eigenpair(evaluator)
        if self._steepest is None or value > max(self.values):
            self._steepest = vector
        self.values.append(value)

    def shares(self, layout: ParameterLayout) -> dict[str, float]:
        """Squared length of the steepest direction by module, in falling order."""
        assert self._steepest is not None
        squares = self._steepest.square() / self._steepest.square().sum()
        found: dict[str, float] = {}
        for name, place in layout.slices.items():
            module = name.rpartition(".")[0]
            found[module] = found.get(module, 0.0) + float(squares[place].sum())
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def tried(self, evaluator: Evaluator) -> list[float]:
        """The largest eigenvalue; none where it is out of the range of numbers."""
        try:
            return [self._eigenpair(evaluator)[0]]
        except NormscopeError:
            return []

    def _eigenpair(self, evaluator: Evaluator) -> tuple[float, Tensor]:
        """The largest eigenvalue and its vector."""
        operator = CurvatureOperator(evaluator, self.kind)
        if self._preconditioner is not None:
            found = preconditioned_eigenvalue(operator, self._preconditioner, _TOLERANCE)
            self.products += found.products
            return found.value, found.vector
        top = _searched(operator, self._direction, self._seed)
        self.products += top.matvecs
        self.converged &= top.converged
        self._direction = top.vectors[:, :1]
        return top.value, top.vectors[:, 0]


def _searched(operator: CurvatureOperator, guess: Tensor | None, seed: int) -> TopEigenvalue:
    request = Request(1, "largest", _TOLERANCE, _MAX_PRODUCTS, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NormscopeWarning)  # said in the advice
        return extreme_eigenvalues(operator, request, guess, time.perf_counter())
