"""At which steps a scope measures."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from normscope.errors import InputError

__all__ = ["Schedule"]


class Schedule:
    """Every so many steps, at given steps, or as often as a share of the training time allows.

    Args:
        every: steps from one measurement to the next.
        steps: the steps to measure at, in place of ``every``.
        budget: the share of the training time that measuring may take: the first step is
            measured, and then a step as soon as the time spent so far is within the share.
        clock: tells the time, in seconds.

    Examples:
        >>> schedule = Schedule(every=3)
        >>> [step for step in range(8) if schedule.due(step)]
        [0, 3, 6]
    """

    def __init__(
        self,
        every: int = 50,
        steps: Iterable[int] | None = None,
        budget: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if isinstance(every, bool) or every != int(every) or every < 1:
            raise InputError(f"every must be a whole number of at least 1, got {every}.")
        if budget is not None and not 0 < budget < float("inf"):
            raise InputError(f"budget is a share of the training time above 0, got {budget}.")
        if budget is not None and steps is not None:
            raise InputError("give steps or a budget, not both: each says when to measure.")
        self.every = int(every)
        self.steps = None if steps is None else _checked(steps)
        self.budget = budget
        self.spent = 0.0
        self._clock = clock
        self._began: float | None = None
        self._last: int | None = None

    def due(self, step: int) -> bool:
        """Whether to measure at a step; called once for each."""
        if self._began is None:
            self._began = self._clock()
        if self.steps is not None:
            return step in self.steps
        if self.budget is None:
            return step % self.every == 0
        if self._last is not None and self.overhead > self.budget:
            return False
        self.every = self.every if self._last is None else step - self._last
        self._last = step
        return True

    @property
    def overhead(self) -> float:
        """Time spent on measuring over the time of the training without it."""
        began = self._clock() if self._began is None else self._began
        training = self._clock() - began - self.spent
        return self.spent / training if training > 0 else float("inf") if self.spent else 0.0

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Count the time of what happens inside as spent on measuring.

        Yields:
            Nothing.
        """
        start = self._clock()
        try:
            yield
        finally:
            self.spent += self._clock() - start


def _checked(steps: Iterable[int]) -> frozenset[int]:
    given = list(steps)
    if any(step != int(step) or step < 0 for step in given):
        raise InputError(f"steps must be whole numbers from 0 on, got {given}.")
    return frozenset(int(step) for step in given)
