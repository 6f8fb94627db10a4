"""The steepest curvature that the first steps of training meet, batch by batch."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.curvature.batch import Batch
from normscope.curvature.evaluation import Evaluator
from normscope.curvature.layout import parameter_layout
from normscope.curvature.operator import CurvatureOperator
from normscope.curvature.problem import Problem
from normscope.curvature.result import TopEigenvalue
from normscope.curvature.search import Request
from normscope.curvature.top_eigenvalue import extreme_eigenvalues
from normscope.errors import NormscopeError, NormscopeWarning
from normscope.learning_rate.preconditioner import (
    Preconditioner,
    preconditioned_eigenvalue,
)
from normscope.learning_rate.rules import UpdateRule

__all__ = ["Curvature", "Tell", "gradient_on", "steepest_curvature"]

Tell = Callable[[str], None]
_TOLERANCE = 0.01  # on the residual; batches differ by more
_MAX_PRODUCTS = 80
_LOOKS = (1, 4, 16)  # steps after which the curvature is measured again


@dataclass(frozen=True)
class Curvature:
    """Largest eigenvalues of the train-mode curvature.

    Args:
        values: one for each batch, at the present weights.
        later: after one, four and sixteen steps, each time at the bound of the values before;
            without those that cannot be measured, where a step led out of the range of numbers.
        shares: squared length of the steepest direction by module, in falling order; they add up
            to one. Of the batch with the largest value.
        kind: "ggn", or "hessian" where the loss does not show the model's output.
        converged: whether every search was.
        products: spent on all of them.
        seconds: likewise.
    """

    values: tuple[float, ...]
    later: tuple[float, ...]
    shares: dict[str, float]
    kind: str
    converged: bool
    products: float
    seconds: float

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
    measured again where one step at that bound leads, where four at the new one do, and sixteen.

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
    kind = "ggn" if problem.has_outputs else "hessian"
    measure = _Measure(problem, kind, rule, preconditioner, seed)
    for number, batch in enumerate(batches):
        tell(f"curvature of batch {number + 1} of {len(batches)}")
        measure.add(batch)
    later: list[float] = []
    for steps in _LOOKS:
        tell(f"curvature after {steps} step{'s' * (steps > 1)}")
        rate = rule.largest_stable_rate(max(*measure.values, *later, 0.0))
        later += measure.after(steps, rate, batches) if math.isfinite(rate) else []
    return Curvature(
        values=tuple(measure.values),
        later=tuple(later),
        shares=measure.shares(),
        kind=kind,
        converged=measure.converged,
        products=measure.products,
        seconds=time.perf_counter() - begin,
    )


class _Measure:
    """Searches one after another, each started from the last one's direction."""

    def __init__(
        self,
        problem: Problem,
        kind: str,
        rule: UpdateRule,
        preconditioner: Preconditioner | None,
        seed: int,
    ) -> None:
        self._problem, self._kind, self._seed = problem, kind, seed
        self._rule, self._preconditioner = rule, preconditioner
        self._layout = parameter_layout(problem.model)
        self._direction: Tensor | None = None
        self._steepest: Tensor | None = None
        self.values: list[float] = []
        self.products, self.converged = 0.0, True

    def add(self, batch: Batch) -> None:
        value, vector = self._eigenpair(self._evaluator(batch))
        if self._steepest is None or value > max(self.values):
            self._steepest = vector
        self.values.append(value)

    def after(self, steps: int, rate: float, batches: Sequence[Batch]) -> list[float]:
        """The value after a few steps on the batches in turn; none if it cannot be measured."""
        point: dict[str, Tensor] = {}
        velocity: Tensor | None = None
        try:
            for number in range(steps):
                evaluator = self._evaluator(batches[number % len(batches)], point)
                gradient = self._gradient(evaluator)
                velocity = self._velocity(gradient, velocity)
                step = velocity
                if self._rule.nesterov:
                    step = gradient + self._rule.momentum * velocity
                point = self._moved(evaluator, rate * step)
            evaluator = self._evaluator(batches[steps % len(batches)], point)
            return [self._eigenpair(evaluator)[0]]
        except NormscopeError:  # not finite there: a step led out of the range of numbers
            return []

    def _gradient(self, evaluator: Evaluator) -> Tensor:
        """In units of the optimizer's steps; without weight decay, which contracts."""
        (batch,) = evaluator.problem.data
        _, gradient = gradient_on(evaluator, batch)
        scale = self._preconditioner
        return gradient if scale is None else gradient / scale.scale

    def _velocity(self, gradient: Tensor, before: Tensor | None) -> Tensor:
        if before is None:
            return gradient  # torch's first buffer, and Adam's mean corrected for its start
        return self._rule.momentum * before + (1 - self._rule.dampening) * gradient

    def _moved(self, evaluator: Evaluator, step: Tensor) -> dict[str, Tensor]:
        moved = self._layout.split(self._layout.join(evaluator.leaves()) - step)
        return {
            name: tensor.detach().to(evaluator.point[name].dtype)
            for name, tensor in zip(self._layout.names, moved, strict=True)
        }

    def shares(self) -> dict[str, float]:
        assert self._steepest is not None
        squares = self._steepest.square() / self._steepest.square().sum()
        found: dict[str, float] = {}
        for name, place in self._layout.slices.items():
            module = name.rpartition(".")[0]
            found[module] = found.get(module, 0.0) + float(squares[place].sum())
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def _evaluator(self, batch: Batch, point: Mapping[str, Tensor] | None = None) -> Evaluator:
        problem = Problem(self._problem.model, self._problem.loss, [batch])
        evaluator = Evaluator(problem, self._layout, "train", self._seed)
        evaluator.point.update(point or {})
        return evaluator

    def _eigenpair(self, evaluator: Evaluator) -> tuple[float, Tensor]:
        operator = CurvatureOperator(evaluator, self._kind)
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


def gradient_on(evaluator: Evaluator, batch: Batch) -> tuple[float, Tensor]:
    """Loss and gradient on one batch; nothing is changed.

    Args:
        evaluator: model and loss at a point.
        batch: as the problem's data has it.

    Returns:
        The loss, and the gradient as a flat vector in the layout's order.
    """
    placed = evaluator.problem.placed(batch)
    leaves = evaluator.leaves()
    with evaluator.scene(leaves):
        loss = evaluator.problem.loss_on(placed)
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    return loss.item(), evaluator.layout.join(gradients).detach()
