"""The curvature bound: top eigenvalues at the start and after the first training steps."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from normscope.curvature.eigensolver import Found, Request, search, start_block
from normscope.curvature.operator import CurvatureOperator
from normscope.curvature.precision import without_autocast
from normscope.curvature.spaces import ParameterSpace
from normscope.curvature.top_eigenvalue import extreme_eigenvalues
from normscope.errors import NormscopeError
from normscope.learning_rate.thresholds import (
    CURVATURE_PRODUCTS,
    EFFORTS,
    HALVINGS,
    PLATEAU_RISE,
)
from normscope.learning_rate.trial_run import TrialRun, TrialStart, leave_plateau
from normscope.learning_rate.update_rule import Preconditioner, UpdateRule
from normscope.problem.batch import Batch, batch_count
from normscope.problem.evaluate import Evaluator
from normscope.problem.parameters import ParameterLayout
from normscope.problem.problem import Problem
from normscope.progress import Progress, ProgressCallback, ignore_progress
from normscope.text import Rendered, Table, plural
from normscope.warn import silenced

_THOROUGH = EFFORTS["thorough"]


@dataclass(frozen=True)
class MeasuredCurvature(Rendered):
    """Largest eigenvalues of the curvature that training sees.

    Args:
        values: one for each batch, at the current weights.
        later: after 1, 4 and 16 steps, each time at the bound of the values before, halved
            until the steps were stable; without those that cannot be measured. If 16 steps
            did not decrease the loss: also where it has begun to decrease, and after 1, 4 and 16
            steps from there.
        shares: squared length of the top eigenvector by module, in decreasing order; they sum to
            one. Of the batch with the largest value.
        kind: "ggn", or "hessian" where the loss does not show the model's output or uses parameters
            beside it, or is linear in it.
        converged: whether every search did.
        products: matvecs of all searches.
        seconds: of all searches.
        beyond: the largest of those measured after a plateau, which `later` ends with; None if
            there was no plateau.
        stable_rate: the learning rate to which the checks had to be lowered; infinite if none was
            unstable.
        batch_size: samples of the largest batch; None if not known.
    """

    values: tuple[float, ...]
    later: tuple[float, ...]
    shares: dict[str, float]
    kind: str
    converged: bool
    products: float
    seconds: float
    beyond: float | None = None
    stable_rate: float = math.inf
    batch_size: int | None = None

    @property
    def largest(self) -> float:
        """The largest of all eigenvalues, which determines the bound."""
        return max(*self.values, *self.later, 0.0)

    @property
    def starts_on_plateau(self) -> bool:
        """Whether the curvature is over four times as large once the loss has decreased."""
        return self.beyond is not None and self.beyond > PLATEAU_RISE * max(self.values)

    def bound(self, rule: UpdateRule) -> float:
        """Return the rule's bound on the learning rate, or less if that was unstable at once."""
        return min(rule.largest_stable_rate(self.largest), self.stable_rate)

    def _table(self) -> Table:
        lists = {"values": self.values, "later": self.later}
        shown = {name: ", ".join(f"{each:.4g}" for each in found) for name, found in lists.items()}
        return Table({**vars(self), **shown}, f"Top eigenvalues of the {self.kind}")


def measure_curvature(
    problem: Problem,
    batches: Sequence[Batch],
    rule: UpdateRule,
    preconditioner: Preconditioner | None = None,
    seed: int = 0,
    progress: ProgressCallback = ignore_progress,
    mode: str = "train",
    later_steps: Sequence[int] = _THOROUGH.later_steps,
    tolerance: float = _THOROUGH.curvature_tolerance,
) -> MeasuredCurvature:
    """Measure the top eigenvalue on every batch and after the first steps.

    The matrix is the Gauss-Newton matrix of the loss, in train mode with derivatives through the
    batch statistics, for each batch by itself, as a training step sees it. In networks with small
    initial outputs the curvature rises at once, and a bound from the start alone would not hold:
    it is measured again after 1 step at that bound, after 4 at the new one, and after 16. If these
    did not decrease the loss, the network is on a plateau: `leave_plateau` leaves it, and the
    checks are repeated from there. The Hessian takes its place where it is zero, as for a loss that
    is linear in the outputs (the negative log-likelihood, L1, hinge).

    Args:
        problem: model, loss and data; not changed.
        batches: of the problem's data.
        rule: of the optimizer.
        preconditioner: of the optimizer; None for SGD.
        seed: of dropout and noise.
        progress: receives an event before each measurement.
        mode: "train", "frozen", "eval" or "as_is".
        later_steps: numbers of steps after which it is measured again; none: only at the start.
        tolerance: on the relative residual of an eigenvalue, whose own error is far smaller.

    Returns:
        The eigenvalues, and the top eigenvector's shares by module.
    """
    begin = time.perf_counter()
    start = TrialStart(problem, batches, preconditioner, seed, mode=mode)
    for kind in ("ggn", "hessian") if start.evaluator(0).loss_is_of_output else ("hessian",):
        checks = _CurvatureChecks(kind, rule, start, seed, later_steps, tolerance)
        for number in range(len(batches)):
            progress(Progress("curvature", f"batch {number + 1} of {len(batches)}"))
            checks.measure_batch(start.evaluator(number))
        if max(checks.values) > 0:
            break
    later, decreased = checks.after_steps(start, max(*checks.values, 0.0), progress)
    beyond = [] if decreased else checks.beyond_plateau(start, max(checks.values))
    return MeasuredCurvature(
        values=tuple(checks.values),
        later=(*later, *beyond),
        shares=checks.shares(start.layout),
        kind=checks.kind,
        converged=checks.converged,
        products=checks.products,
        seconds=time.perf_counter() - begin,
        beyond=max(beyond, default=None),
        stable_rate=checks.stable_rate,
        batch_size=max(map(batch_count, batches)),
    )


class _CurvatureChecks:
    """Eigenvalue searches one after another, each started from the last one's eigenvector."""

    def __init__(
        self,
        kind: str,
        rule: UpdateRule,
        start: TrialStart,
        seed: int,
        later_steps: Sequence[int],
        tolerance: float,
    ) -> None:
        self.kind, self._rule, self._seed = kind, rule, seed
        self._later_steps, self._tolerance = later_steps, tolerance
        self._preconditioner = start.preconditioner
        self._guess: Tensor | None = None
        self._top_vector: Tensor | None = None
        self.values: list[float] = []
        self.products, self.converged = 0.0, True
        self.stable_rate = math.inf

    def measure_batch(self, evaluator: Evaluator) -> None:
        """Add the eigenvalue at the current weights on one more batch."""
        value, vector = self._eigenpair(evaluator)
        if self._top_vector is None or value > max(self.values):
            self._top_vector = vector
        self.values.append(value)

    def shares(self, layout: ParameterLayout) -> dict[str, float]:
        """Return the squared length of the top eigenvector by module, in decreasing order."""
        assert self._top_vector is not None
        squares = self._top_vector.square() / self._top_vector.square().sum()
        found: dict[str, float] = {}
        for name, entries in layout.slices.items():
            module = name.rpartition(".")[0]
            found[module] = found.get(module, 0.0) + float(squares[entries].sum())
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def after_steps(
        self, start: TrialStart, largest: float, progress: ProgressCallback = ignore_progress
    ) -> tuple[list[float], bool]:
        """Measure after the later steps, each time at the bound of the values before.

        Args:
            start: of the steps.
            largest: eigenvalue there.
            progress: receives an event before each measurement.

        Returns:
            The eigenvalues, and whether the last steps decreased the loss; true if none were taken.
        """
        found: list[float] = []
        decreased = True
        for steps in self._later_steps:
            rate = self._rule.largest_stable_rate(max([largest, *found]))
            if math.isfinite(rate):
                progress(Progress("curvature", f"after {plural(steps, 'step')}"))
                run = self._stable_run(start, steps, rate)
                found += [] if run.is_unstable else self._measure(run.evaluator())
                decreased = run.has_decreased()
        return found, decreased

    def _stable_run(self, start: TrialStart, steps: int, rate: float) -> TrialRun:
        """Take steps at a rate, which is halved up to six times until they are stable.

        The curvature after unstable steps is not that of any training.
        """
        run = TrialRun(start, self._rule, min(rate, self.stable_rate)).take(steps)
        for _ in range(HALVINGS):
            if not run.is_unstable:
                break
            self.stable_rate = run.rate / 2
            run = TrialRun(start, self._rule, self.stable_rate).take(steps)
        return run

    def beyond_plateau(self, start: TrialStart, largest: float) -> list[float]:
        """Measure where a constant loss has begun to decrease, and after steps from there."""
        run = leave_plateau(start, largest) if largest > 0 else None
        if run is None:
            return []
        left = start.moved_to(run.taken, run.point)
        found = self._measure(left.evaluator(0))
        return [*found, *self.after_steps(left, max([*found, 0.0]))[0]]

    def _measure(self, evaluator: Evaluator) -> list[float]:
        """Return the eigenvalue in a list; an empty list if it cannot be measured."""
        try:
            return [self._eigenpair(evaluator)[0]]
        except NormscopeError:
            return []

    def _eigenpair(self, evaluator: Evaluator) -> tuple[float, Tensor]:
        operator = CurvatureOperator(evaluator, self.kind)
        if self._preconditioner is not None:
            found = preconditioned_eigenvalue(operator, self._preconditioner, self._tolerance)
            self.products += found.products
            self.converged &= found.converged
            return float(found.values[0]), found.vectors[:, 0]
        request = Request(1, "largest", self._tolerance, CURVATURE_PRODUCTS, self._seed)
        with silenced():  # the advice reports convergence
            top = extreme_eigenvalues(operator, request, self._guess, time.perf_counter())
        self.products += top.matvecs
        self.converged &= top.converged
        self._guess = top.vectors[:, :1]
        return top.value, top.vectors[:, 0]


def preconditioned_eigenvalue(
    operator: CurvatureOperator,
    preconditioner: Preconditioner,
    tolerance: float = _THOROUGH.curvature_tolerance,
    guess: Tensor | None = None,
) -> Found:
    r"""Return the largest eigenvalue of the curvature in units of the optimizer's steps.

    .. math:: \lambda_{\max}(P^{-1/2} (G + W) P^{-1/2})

    Args:
        operator: G.
        preconditioner: P, and the diagonal W of the weight decay in the gradient.
        tolerance: on the relative residual.
        guess: the vector of an earlier search, to start from; None for a random one.

    Returns:
        The result of the search, its vector in scaled parameters.
    """
    space = _ScaledSpace(operator, preconditioner)
    request = Request(1, "largest", tolerance, CURVATURE_PRODUCTS, seed=0)
    guesses = None if guess is None else guess.unsqueeze(1)
    with without_autocast():
        return search(space, start_block(space, guesses, request), request)


class _ScaledSpace(ParameterSpace):
    """Parameter vectors in units of the optimizer's steps."""

    def __init__(self, operator: CurvatureOperator, preconditioner: Preconditioner) -> None:
        super().__init__(operator)
        self._root = preconditioner.scale.sqrt()
        decay = preconditioner.decay
        self._decay = None if decay is None else decay / preconditioner.scale

    def times(self, vector: Tensor) -> Tensor:
        """Return the scaled curvature times a vector."""
        product = super().times(vector / self._root) / self._root
        return product if self._decay is None else product + self._decay * vector
