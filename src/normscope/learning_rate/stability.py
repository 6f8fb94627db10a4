"""The definition of instability, and one short training run that tests for it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import (
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    NAdam,
    Optimizer,
    RAdam,
    RMSprop,
)

from normscope.learning_rate.thresholds import (
    COLLAPSE_CHECKS,
    COLLAPSE_EVERY,
    EARLY_STEPS,
    GROWTH,
    HOPELESS_GROWTH,
    RECOVERED_STEPS,
    RECOVERY_STEPS,
    SHRUNK,
    SQUARED_ERROR_GROWTH,
    STEPS,
)
from normscope.problem.problem import Problem
from normscope.problem.recognition import is_squared_error
from normscope.text import Rendered
from normscope.training.common_rate import CommonRate
from normscope.training.loop import Loop

_SECOND_MOMENT = (
    *(Adam, AdamW, NAdam, RAdam, Adamax, Adadelta, Adagrad, RMSprop),
    Adafactor,
)


@dataclass(frozen=True)
class ShortRun(Rendered):
    """One short training run at a learning rate.

    Args:
        rate: the learning rate; of a ramp the last one.
        order: seed of the data order.
        unstable: whether the loss became non-finite or exceeded the limit.
        steps: gradients taken; an unstable run ends at once.
        worst: the largest loss divided by the first one; 1 if the first loss is not positive.
        died: whether the network collapsed instead: its output is the same for every sample, as
            behind units that are zero for all of them. Its loss then stays constant, which is
            stable by the definition.
        losses: of every step, before its update.
        shrunk: whether the output became the same for every sample because a penalty or weight
            decay drove the weights to zero, where its minimum is: not a collapse.
        kept: smallest share of its norm that a weight has left; 0 if it is not finite.
    """

    rate: float
    order: int
    unstable: bool
    steps: int
    worst: float
    died: bool = False
    losses: tuple[float, ...] = ()
    shrunk: bool = False
    kept: float = 1.0

    def summary(self) -> dict[str, Any]:
        """Return all but the losses, by name."""
        return {name: value for name, value in vars(self).items() if name != "losses"}

    @property
    def failed(self) -> bool:
        """Whether the run was unstable or the network collapsed."""
        return self.unstable or self.died

    @property
    def is_late(self) -> bool:
        """Whether the run was unstable, but not in its first 20 steps.

        A rate that breaks the first steps does so on nearly every data order. Later instabilities
        depend on chance: one order breaks at a third of the rate at which another does.
        """
        return self.unstable and self.steps > EARLY_STEPS


def growth_limit(loss: object) -> float:
    """Return the multiple of its first value above which a loss counts as unstable.

    Args:
        loss: as `Problem` holds it.

    Returns:
        3 for the squared error; 1.5 for the cross-entropy and all others, whose gradient is
        bounded, so that they grow more slowly.

    >>> growth_limit(nn.MSELoss()), growth_limit(nn.CrossEntropyLoss())
    (3.0, 1.5)
    """
    return SQUARED_ERROR_GROWTH if is_squared_error(loss) else GROWTH


def short_run(
    problem: Problem,
    optimizer: Optimizer,
    batch_size: int | None,
    order: int,
    steps: int = STEPS,
    rate_at: Callable[[int], float] | None = None,
    keeps_flags: bool = False,
    is_ramp: bool = True,
) -> ShortRun:
    """Train the problem's model in place until it is unstable or the steps are used up.

    Args:
        problem: model, loss and data.
        optimizer: of its parameters.
        batch_size: samples per step; None: the batches of the data.
        order: seed of the data order.
        steps: largest number of gradients to take.
        rate_at: learning rate by step, set on every parameter group; None: the optimizer's own.
        keeps_flags: leave every module's ``training`` flag as it is; False: as in `train`.
        is_ramp: whether ``rate_at`` grows until the run fails.

    Returns:
        The outcome.
    """
    taken, unstable, rate = 0, False, 0.0
    growth = growth_limit(problem.loss)
    recovers, is_growing = has_second_moment(optimizer), is_ramp and rate_at is not None
    loop = Loop(
        problem,
        optimizer,
        batch_size,
        order,
        divergence_factor=HOPELESS_GROWTH if recovers else growth,
        own_gradients_only=True,
        keeps_flags=keeps_flags,
        updates_last=False,
    )
    with closing(loop.run(steps)) as running, _CollapseCheck(problem.model) as collapse:
        for step in running:
            taken += 1
            if rate_at is not None:
                for group in step.optimizer.param_groups:
                    group["lr"] = rate_at(step.index)
            rate = float(step.optimizer.param_groups[0]["lr"])
            lost = recovers and has_not_recovered(loop.losses, growth, is_growing)
            unstable = step.diverged or lost
            if unstable or collapse.check(step.index):
                break
    if recovers and not unstable:
        unstable = _is_above(loop.losses[-RECOVERED_STEPS:], loop.losses[0], growth)
    outcome = rate, order, unstable, taken, _largest_growth(loop.losses), collapse.found
    return ShortRun(*outcome, tuple(loop.losses), collapse.shrunk, collapse.kept)


def has_second_moment(optimizer: Optimizer) -> bool:
    """Return whether an optimizer divides its steps by a mean squared gradient.

    Args:
        optimizer: any torch optimizer; those of other packages count as without.
    """
    inner = optimizer.inner if isinstance(optimizer, CommonRate) else optimizer
    return isinstance(inner, _SECOND_MOMENT)


def has_not_recovered(losses: Sequence[float], growth: float, is_ramp: bool) -> bool:
    """Return whether a loss that may come back has been above the limit of growth for too long.

    With a second moment the steps shrink after a spike, because its gradients are large: most
    losses come back, and the run is stable. A ramp, whose rate grows on, is not given that time.

    Args:
        losses: of all steps so far.
        growth: multiple of the first loss.
        is_ramp: whether the learning rate grows.
    """
    enough = RECOVERED_STEPS if is_ramp else RECOVERY_STEPS
    return len(losses) > enough and min(losses[-enough:]) > growth * losses[0] > 0


def _is_above(losses: Sequence[float], first: float, growth: float) -> bool:
    return bool(losses) and statistics.median(losses) > growth * first > 0


def _largest_growth(losses: Sequence[float]) -> float:
    """Return the largest loss over the first; 1 if that is not positive."""
    if not losses or losses[0] <= 0:
        return 1.0
    worst = 1.0
    for loss in losses:  # not max() alone: a NaN does not count
        worst = max(worst, loss / losses[0])
    return worst


class _CollapseCheck:
    """Detects that a model's outputs, which once differed between samples, became constant.

    A forward hook keeps the output of every tenth step, if it is a tensor with samples first. If
    all weights have become small, a penalty on them has made the outputs constant: ``shrunk``, not
    ``found``.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._output: Tensor | None = None
        self._has_differed, self._constant = False, 0
        self._weights = WeightNorms(model)
        self.found = self.shrunk = False

    def __enter__(self) -> Self:
        self._register()
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.remove()

    def _register(self) -> None:
        self._output = None
        self._handle = self._model.register_forward_hook(self._keep)

    def _keep(self, model: nn.Module, inputs: object, output: object) -> None:
        self._output = output.detach() if isinstance(output, Tensor) else None

    def check(self, index: int) -> bool:
        """Check every tenth step; collapsed once outputs are constant at two checks in a row."""
        if (index + 1) % COLLAPSE_EVERY == 0:  # not always: a hook slows every forward pass
            self._register()
        if index % COLLAPSE_EVERY:
            return self.found
        self._handle.remove()
        output = self._output
        if output is None or output.dim() == 0 or len(output) < 2:
            return self.found
        if bool((output != output[:1]).any()):
            self._has_differed, self._constant = True, 0
        elif self._has_differed:
            self._constant += 1
            if self._constant == COLLAPSE_CHECKS:  # momentum may leave the first one again
                self.shrunk = self._has_shrunk(output)
                self.found = not self.shrunk
        return self.found

    @property
    def kept(self) -> float:
        """The smallest share of its norm that a weight has left; 0 if one is not finite."""
        shares = self._weights.shares()
        return min(shares, default=1.0) if all(map(math.isfinite, shares)) else 0.0

    def _has_shrunk(self, output: Tensor) -> bool:
        """Return whether all weights are small, and their product too small to change the output.

        Units that are dead leave the weights about as they are.
        """
        shares = self._weights.shares()
        too_small = math.sqrt(torch.finfo(output.dtype).eps) if output.is_floating_point() else 0.0
        return bool(shares) and max(shares) < SHRUNK and math.prod(shares) < too_small


class WeightNorms:
    """The norms that trained weights, without biases and scales, have at the start of a run.

    Args:
        model: that is trained in place.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._start = self._norms()

    def shares(self) -> list[float]:
        """Return the share of its norm that each weight has now; without those that were zero."""
        pairs = zip(self._norms(), self._start, strict=True)
        return [now / start for now, start in pairs if start]

    def _norms(self) -> list[float]:
        trained = (each for each in self._model.parameters() if each.requires_grad)
        return [float(each.detach().norm()) for each in trained if each.dim() > 1]


def is_unstable(
    problem: Problem, optimizer: Optimizer, batch_size: int | None = None, order: int = 0
) -> bool:
    """Return whether training is unstable at the optimizer's learning rate; trains the model.

    The definition used throughout: within the first 100 steps the loss becomes non-finite or
    exceeds 3 times (squared error) or 1.5 times (other losses) its first value. Under an optimizer
    with a second moment (Adam, AdamW, RMSprop and their kin) a loss that comes back is stable: it
    is unstable if it exceeds 1000 times its first value, exceeds the multiple for 50 steps in a
    row, or exceeds it in the median of the last 10 steps. The stability limit is the smallest
    such learning rate, to 5 %, in the median over three data orders.

    Args:
        problem: model, loss and data; pass a copy, or let `max_learning_rate` restore the model.
        optimizer: of its parameters.
        batch_size: samples per step; None: the batches of the data.
        order: seed of the data order.

    Returns:
        True as soon as it is unstable; False after 100 steps.

    >>> import torch
    >>> from normscope.training import sgd
    >>> line = nn.Linear(1, 1, bias=False)
    >>> problem = Problem(line, "squared_error", (torch.ones(2, 1), torch.full((2, 1), 9.0)))
    >>> is_unstable(problem, sgd(2.1)(line.parameters()))  # curvature 1, so the limit is near 2
    True
    """
    return short_run(problem, optimizer, batch_size, order).unstable
