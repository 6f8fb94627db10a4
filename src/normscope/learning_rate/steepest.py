"""The steepest curvature that the first steps of training meet, batch by batch."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from normscope.curvature.batch import Batch
from normscope.curvature.evaluation import Evaluator
from normscope.curvature.layout import ParameterLayout
from normscope.curvature.operator import CurvatureOperator
from normscope.curvature.problem import Problem
from normscope.curvature.result import TopEigenvalue
from normscope.curvature.search import Request
from normscope.curvature.top_eigenvalue import extreme_eigenvalues
from normscope.errors import NormscopeError, NormscopeWarning
from normscope.learning_rate.plateau import has_fallen, off_the_plateau
from normscope.learning_rate.preconditioner import (
    Preconditioner,
    preconditioned_eigenvalue,
)
from normscope.learning_rate.rules import UpdateRule
from normscope.learning_rate.walk import Walk, Walks

__all__ = ["Curvature", "Tell", "steepest_curvature"]

Tell = Callable[[str], None]
_TOLERANCE = 0.01  # on the residual; batches differ by more
_MAX_PRODUCTS = 80
_LOOKS = (1, 4, 16)  # steps after which the curvature is measured again
_FAR_STEEPER = 4.0


@dataclass(frozen=True)
class Curvature:
    """Largest eigenvalues of the train-mode curvature.

    Args:
        values: one for each batch, at the present weights.
        later: after one, four and sixteen steps, each time at the bound of the values before;
            without those that cannot be measured, where a step led out of the range of numbers. If
            sixteen steps did not lower the loss: also where it has begun to fall, and after one,
            four and sixteen steps from there.
        shares: squared length of the steepest direction by module, in falling order; they add up
            to one. Of the batch with the largest value.
        kind: "ggn", or "hessian" where the loss does not show the model's output.
        converged: whether every search was.
        products: spent on all of them.
        seconds: likewise.
        beyond: the largest of those that were measured where the net had left a plateau, which
            `later` ends with; None if it began on none.
    """

    values: tuple[float, ...]
    later: tuple[float, ...]
    shares: dict[str, float]
    kind: str
    converged: bool
    products: float
    seconds: float
    beyond: float | None = None

    def _repr_html_(self) -> str:
        from normscope.results.notebook import pairs_html

        told = {
            "values": ", ".join(f"{value:.4g}" for value in self.values),
            "later": ", ".join(f"{value:.4g}" for value in self.later),
            "products": round(self.products),
        }
        return pairs_html({**vars(self), **told}, f"Top eigenvalues of the {self.kind}")

    @property
    def binding(self) -> float:
        """The largest of all: the one that bounds the learning rate."""
        return max(*self.values, *self.later, 0.0)

    @property
    def begins_flat(self) -> bool:
        """Whether the net begins on a plateau: far steeper where its loss has begun to fall."""
        return self.beyond is not None and self.beyond > _FAR_STEEPER * max(self.values)

    def bound_beyond(self, rule: UpdateRule) -> float | None:
        """The rule's bound where a plateau ends; None for a net that begins on none."""
        if self.beyond is None or not self.begins_flat:
            return None
        return rule.largest_stable_rate(self.beyond)

    @property
    def sharpening(self) -> float:
        """How much steeper it is after a few steps than here; at least one."""
        here = max(self.values)
        return self.binding / here if here > 0 else 1.0


def steepest_curvature(
    problem: Problem,
    batches: Sequence[Batch],
    rule: UpdateRule,
    preconditioner: Preconditioner | None = None,
    seed: int = 0,
    tell: Tell = lambda text: None,
) -> Curvature:
    """Measure the largest eigenvalue on every batch, and where the first steps lead.

    The Gauss-Newton matrix of the loss, with batch statistics and derivatives through them, each
    batch by itself: a training step sees no mean over batches. Nets with small initial outputs grow
    steeper at once, and a bound from the start alone would not hold for them: the curvature is
    measured again where one step at that bound leads, where four at the new one do, and sixteen. If
    these have not lowered the loss, the net is on a plateau, whose curvature says nothing of what
    comes after: it is left by `off_the_plateau`, and the looks are repeated from there.

    Args:
        problem: model, loss and data; nothing of it is changed.
        batches: of the problem's data.
        rule: of the optimizer.
        preconditioner: of the optimizer; None for SGD.
        seed: of dropout and noise.
        tell: called with a text as each part begins.

    Returns:
        The eigenvalues and where the steepest direction lies.
    """
    begin = time.perf_counter()
    walks = Walks(problem, batches, preconditioner, seed)
    measure = _Measure("ggn" if problem.has_outputs else "hessian", preconditioner, seed)
    for number in range(len(batches)):
        tell(f"curvature of batch {number + 1} of {len(batches)}")
        measure.add(walks.evaluator(number))
    looks = _Looks(measure, rule, tell)
    later, fallen = looks.ahead(walks, max(*measure.values, 0.0))
    beyond = [] if fallen else looks.beyond_plateau(walks, max(measure.values))
    return Curvature(
        values=tuple(measure.values),
        later=(*later, *beyond),
        shares=measure.shares(walks.layout),
        kind=measure.kind,
        converged=measure.converged,
        products=measure.products,
        seconds=time.perf_counter() - begin,
        beyond=max(beyond, default=None),
    )


class _Looks:
    """Looks at the curvature where the first steps lead."""

    def __init__(self, measure: _Measure, rule: UpdateRule, tell: Tell) -> None:
        self._measure, self._rule, self._tell = measure, rule, tell

    def ahead(self, walks: Walks, steepest: float) -> tuple[list[float], bool]:
        """After one, four and sixteen steps, each time at the bound of what was seen before.

        Nothing is seen where a step led out of the range of numbers.

        Args:
            walks: from where.
            steepest: largest curvature there.

        Returns:
            The curvatures, and whether the last steps lowered the loss; true if none were taken.
        """
        seen: list[float] = []
        fallen = True
        for steps in _LOOKS:
            rate = self._rule.largest_stable_rate(max([steepest, *seen]))
            if not math.isfinite(rate):
                continue
            self._tell(f"curvature after {steps} step{'s' * (steps > 1)}")
            walk = Walk(walks, self._rule, rate)
            try:
                loss = [walk.step() for _ in range(steps)][-1]
                seen.append(self._measure.eigenpair(walk.here())[0])
            except NormscopeError:
                fallen = False
            else:
                fallen = has_fallen(loss, walks.first_loss(steps - 1))
        return seen, fallen

    def beyond_plateau(self, walks: Walks, steepest: float) -> list[float]:
        """Where a loss that stood still has begun to fall, and after steps from there."""
        if steepest <= 0:
            return []
        self._tell("the way off the plateau")
        left = off_the_plateau(walks, steepest)
        if left is None:
            return []
        try:
            value, _ = self._measure.eigenpair(left.evaluator(0))
        except NormscopeError:
            return []
        return [value, *self.ahead(left, max(value, 0.0))[0]]


class _Measure:
    """Searches one after another, each started from the last one's direction."""

    def __init__(self, kind: str, preconditioner: Preconditioner | None, seed: int) -> None:
        self.kind, self._preconditioner, self._seed = kind, preconditioner, seed
        self._direction: Tensor | None = None
        self._steepest: Tensor | None = None
        self.values: list[float] = []
        self.products, self.converged = 0.0, True

    def add(self, evaluator: Evaluator) -> None:
        """The value at the present weights, on one more batch."""
        value, vector = self.eigenpair(evaluator)
        if self._steepest is None or value > max(self.values):
            self._steepest = vector
        self.values.append(value)

    def shares(self, layout: ParameterLayout) -> dict[str, float]:
        assert self._steepest is not None
        squares = self._steepest.square() / self._steepest.square().sum()
        found: dict[str, float] = {}
        for name, place in layout.slices.items():
            module = name.rpartition(".")[0]
            found[module] = found.get(module, 0.0) + float(squares[place].sum())
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def eigenpair(self, evaluator: Evaluator) -> tuple[float, Tensor]:
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
