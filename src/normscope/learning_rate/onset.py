"""The onset of instability, defined once: what counts as unstable, and one run that finds out."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Self

from torch import Tensor, nn
from torch.optim import Optimizer

from normscope.problem.loss import is_squared_error
from normscope.problem.problem import Problem
from normscope.training import train

__all__ = [
    "ORDERS",
    "STEPS",
    "TOLERANCE",
    "Trial",
    "growth_limit",
    "is_beyond",
    "is_unstable",
    "trial",
]

STEPS = 100  # an instability counts if it shows within so many
TOLERANCE = 0.05  # relative, on the onset
ORDERS = 3  # orders of the data, of whose onsets the median counts
_EARLY = 20  # steps within which an instability shows that the rate itself is too large
_BETWEEN_LOOKS = 10  # steps between two looks for a pulse
_SQUARED_LIMIT = 3.0
_OTHER_LIMIT = 1.5


@dataclass(frozen=True)
class Trial:
    """One short run at a learning rate.

    Args:
        rate: the learning rate; of a ramp the last one.
        order: seed of the order of the data.
        unstable: whether the loss became non-finite or passed the limit.
        steps: gradients taken; an unstable run ends at once.
        worst: the largest loss over the first one; 1 for a first loss that is not positive.
        died: whether the net died instead: its output is the same for every sample, as behind
            units that are zero for all of them. Its loss stays where it is, and is stable by the
            definition.
    """

    rate: float
    order: int
    unstable: bool
    steps: int
    worst: float
    died: bool = False

    @property
    def failed(self) -> bool:
        """Whether nothing can be learned at this rate: it was unstable, or the net died."""
        return self.unstable or self.died

    @property
    def is_late(self) -> bool:
        """Whether it was unstable, but not in its first 20 steps.

        What a rate does to the first steps, it does on every order of the data, or nearly. Later
        instabilities are chance: one order breaks at a third of the rate at which another does, and
        the same order may hold at a rate between.
        """
        return self.unstable and self.steps > _EARLY

    def _repr_html_(self) -> str:
        from normscope.results.notebook import pairs_html

        return pairs_html(vars(self), "One short run")


def growth_limit(loss: object) -> float:
    """The multiple of its first value above which a loss counts as unstable.

    Args:
        loss: as `Problem` holds it.

    Returns:
        3 for the squared error, 1.5 for the cross-entropy and all others: their gradient is
        bounded, so that they grow more slowly.

    >>> growth_limit(nn.MSELoss()), growth_limit(nn.CrossEntropyLoss())
    (3.0, 1.5)
    """
    return _SQUARED_LIMIT if is_squared_error(loss) else _OTHER_LIMIT


def is_beyond(loss: float, first: float, limit: float) -> bool:
    """Whether one loss of a training is unstable.

    Args:
        loss: of a step.
        first: of the first step; a multiple of zero or less means nothing.
        limit: of `growth_limit`.

    >>> is_beyond(1.6, 1.0, 1.5), is_beyond(1.5, 1.0, 1.5), is_beyond(math.nan, 0.0, 1.5)
    (True, False, True)
    """
    return not math.isfinite(loss) or loss > limit * first > 0


def trial(
    problem: Problem,
    optimizer: Optimizer,
    batch_size: int | None,
    order: int,
    steps: int = STEPS,
    rate_at: Callable[[int], float] | None = None,
) -> Trial:
    """Train the problem's model itself, until it is unstable or the steps are over.

    Args:
        problem: a copy that may be trained, loss and data.
        optimizer: of its parameters.
        batch_size: samples per step; None: the batches as the data has them.
        order: seed of the order of the data.
        steps: how many gradients to take at most.
        rate_at: learning rate by step, set on every parameter group; None: the optimizer's own.

    Returns:
        What became of it.
    """
    limit = growth_limit(problem.loss)
    taken, first, worst, unstable, rate = 0, 0.0, 1.0, False, 0.0
    running = train(problem, optimizer, steps, batch_size, order, divergence_factor=limit)
    with closing(running), _Pulse(problem.model) as pulse:
        for step in running:
            taken += 1
            first = step.loss if taken == 1 else first
            worst = max(worst, step.loss / first) if first > 0 else 1.0
            if rate_at is not None:
                for group in step.optimizer.param_groups:
                    group["lr"] = rate_at(step.index)
            rate = float(step.optimizer.param_groups[0]["lr"])
            unstable = step.diverged
            if unstable or pulse.is_gone(step.index):
                break
    return Trial(rate, order, unstable, taken, worst, died=pulse.gone)


class _Pulse:
    """Whether a model's outputs still differ from sample to sample, once they did.

    Seen on the way: what the model gives back is looked at, if that is a tensor, samples first.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._output: Tensor | None = None
        self._beat, self._missed = False, 0
        self.gone = False

    def __enter__(self) -> Self:
        self._handle = self._model.register_forward_hook(self._see)
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.remove()

    def _see(self, model: nn.Module, given: object, output: object) -> None:
        self._output = output.detach() if isinstance(output, Tensor) else None

    def is_gone(self, index: int) -> bool:
        """Look at the output of a step, now and then; gone is what was missed twice in a row."""
        output = self._output
        if output is None or output.dim() == 0 or len(output) < 2 or index % _BETWEEN_LOOKS:
            return self.gone
        if bool((output != output[:1]).any()):
            self._beat, self._missed = True, 0
        elif self._beat:
            self._missed += 1
            self.gone = self._missed == 2  # once may be a moment of its momentum
        return self.gone


def is_unstable(
    problem: Problem, optimizer: Optimizer, batch_size: int | None = None, order: int = 0
) -> bool:
    """Whether training is unstable at the optimizer's learning rate; the model is trained.

    The definition of the whole project: within the first 100 steps the loss becomes non-finite or
    exceeds 3 times (squared error) or 1.5 times (other losses) its first value. The onset is the
    smallest such learning rate, to 5 %, in the median over three orders of the data.

    Args:
        problem: a copy that may be trained, loss and data.
        optimizer: of its parameters.
        batch_size: samples per step; None: the batches as the data has them.
        order: seed of the order of the data.

    Returns:
        True as soon as it is unstable; False after 100 steps.

    >>> import torch
    >>> from normscope.training import sgd
    >>> line = nn.Linear(1, 1, bias=False)
    >>> problem = Problem(line, "squared_error", (torch.ones(2, 1), torch.full((2, 1), 9.0)))
    >>> is_unstable(problem, sgd(2.1)(line.parameters()))  # curvature 1, so the onset is near 2
    True
    """
    return trial(problem, optimizer, batch_size, order).unstable
