"""The steepest curvature that the first steps of training meet, batch by batch."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from normscope.learning_rate.looks import Looks, Measure, Tell
from normscope.learning_rate.preconditioner import Preconditioner
from normscope.learning_rate.rules import UpdateRule
from normscope.learning_rate.walk import Walks
from normscope.problem.batch import Batch
from normscope.problem.problem import Problem

__all__ = ["Curvature", "Tell", "steepest_curvature"]

_FAR_STEEPER = 4.0


@dataclass(frozen=True)
class Curvature:
    """Largest eigenvalues of the train-mode curvature.

    Args:
        values: one for each batch, at the present weights.
        later: after one, four and sixteen steps, each time at the bound of the values before, or
            at the largest half of it that did not break the loss; without those that cannot be
            measured. If sixteen steps did not lower the loss: also where it has begun to fall, and
            after one, four and sixteen steps from there.
        shares: squared length of the steepest direction by module, in falling order; they add up
            to one. Of the batch with the largest value.
        kind: "ggn", or "hessian" where the loss does not show the model's output.
        converged: whether every search was.
        products: spent on all of them.
        seconds: likewise.
        beyond: the largest of those that were measured where the net had left a plateau, which
            `later` ends with; None if it began on none.
        unbroken: the learning rate to which these steps had to be lowered; infinite if none broke
            the loss.
    """

    values: tuple[float, ...]
    later: tuple[float, ...]
    shares: dict[str, float]
    kind: str
    converged: bool
    products: float
    seconds: float
    beyond: float | None = None
    unbroken: float = math.inf

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

    def bound(self, rule: UpdateRule) -> float:
        """The rule's bound on the learning rate, or less where that broke the loss at once."""
        return min(rule.largest_stable_rate(self.binding), self.unbroken)


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
    measure = Measure("ggn" if problem.has_outputs else "hessian", preconditioner, seed)
    for number in range(len(batches)):
        tell(f"curvature of batch {number + 1} of {len(batches)}")
        measure.add(walks.evaluator(number))
    looks = Looks(measure, rule)
    later, fallen = looks.ahead(walks, max(*measure.values, 0.0), tell)
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
        unbroken=looks.unbroken,
    )
