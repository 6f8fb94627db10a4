"""The steepest curvature that the first steps of training meet, batch by batch."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
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

__all__ = ["Curvature", "Tell", "gradient_on", "steepest_curvature"]

Tell = Callable[[str], None]
_TOLERANCE = 0.01  # on the residual; batches differ by more
_MAX_PRODUCTS = 80


@dataclass(frozen=True)
class Curvature:
    """Largest eigenvalues of the train-mode curvature.

    Args:
        values: one for each batch, at the present weights.
        ahead: one at the point where the tangent of the loss reaches zero, if it can be measured.
        shares: squared length of the steepest direction by module, in falling order; they add up
            to one. Of the batch with the largest value.
        kind: "ggn", or "hessian" where the loss does not show the model's output.
        converged: whether every search was.
        products: spent on all of them.
        seconds: likewise.
    """

    values: tuple[float, ...]
    ahead: float | None
    shares: dict[str, float]
    kind: str
    converged: bool
    products: float
    seconds: float

    def _repr_html_(self) -> str:
        from normscope.results.notebook import pairs_html

        values = ", ".join(f"{value:.4g}" for value in self.values)
        told = {"values": values, "products": round(self.products)}
        return pairs_html({**vars(self), **told}, f"Top eigenvalues of the {self.kind}")

    @property
    def binding(self) -> float:
        """The largest of all: the one that bounds the learning rate."""
        return max(self.values) if self.ahead is None else max(*self.values, self.ahead)

    @property
    def sharpening(self) -> float:
        """How much steeper it is ahead than here; at least one."""
        return self.binding / max(self.values)


def steepest_curvature(
    problem: Problem,
    batches: Sequence[Batch],
    preconditioner: Preconditioner | None = None,
    seed: int = 0,
    tell: Tell = lambda text: None,
) -> Curvature:
    """Measure the largest eigenvalue on every batch, and once a little ahead.

    The Gauss-Newton matrix of the loss, with batch statistics and derivatives through them, each
    batch by itself: a training step sees no mean over batches. The point ahead is where the loss
    would be zero if it fell along its gradient as steeply as it begins to: nets with small initial
    outputs grow steeper at once, and a bound from the start alone would not hold for them.

    Args:
        problem: model, loss and data; nothing of it is changed.
        batches: of the problem's data.
        preconditioner: of the optimizer; None for SGD.
        seed: of dropout and noise.
        tell: called with a text as each part begins.

    Returns:
        The eigenvalues and where the steepest direction lies.
    """
    begin = time.perf_counter()
    kind = "ggn" if problem.has_outputs else "hessian"
    measure = _Measure(problem, kind, preconditioner, seed)
    for number, batch in enumerate(batches):
        tell(f"curvature of batch {number + 1} of {len(batches)}")
        measure.add(batch)
    tell("curvature ahead")
    ahead = measure.ahead(batches[0])
    return Curvature(
        values=tuple(measure.values),
        ahead=ahead,
        shares=measure.shares(),
        kind=kind,
        converged=measure.converged,
        products=measure.products,
        seconds=time.perf_counter() - begin,
    )


class _Measure:
    """Searches one after another, each started from the last one's direction."""

    def __init__(
        self, problem: Problem, kind: str, preconditioner: Preconditioner | None, seed: int
    ) -> None:
        self._problem, self._kind, self._seed = problem, kind, seed
        self._preconditioner = preconditioner
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

    def ahead(self, batch: Batch) -> float | None:
        evaluator = self._evaluator(batch)
        loss, gradient = gradient_on(evaluator, batch)
        squared = float(gradient @ gradient)
        if not loss > 0 or not squared > 0:
            return None
        moved = self._layout.split(
            self._layout.join(evaluator.leaves()) - loss / squared * gradient
        )
        evaluator.point.update(
            {
                name: tensor.detach().to(evaluator.point[name].dtype)
                for name, tensor in zip(self._layout.names, moved, strict=True)
            }
        )
        try:
            return self._eigenpair(evaluator)[0]
        except NormscopeError:  # not finite there: the step led out of the loss's domain
            return None

    def shares(self) -> dict[str, float]:
        assert self._steepest is not None
        squares = self._steepest.square() / self._steepest.square().sum()
        found: dict[str, float] = {}
        for name, place in self._layout.slices.items():
            module = name.rpartition(".")[0]
            found[module] = found.get(module, 0.0) + float(squares[place].sum())
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def _evaluator(self, batch: Batch) -> Evaluator:
        problem = Problem(self._problem.model, self._problem.loss, [batch])
        return Evaluator(problem, self._layout, "train", self._seed)

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
