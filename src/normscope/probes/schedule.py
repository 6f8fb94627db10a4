"""The steps at which a scope measures."""

from __future__ import annotations

import numbers
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, SupportsFloat

from normscope.errors import ArgumentTypeError, InputError


class Schedule:
    """Measure every n steps, at given steps, or within a share of the training time.

    Args:
        every: steps from one measurement to the next.
        steps: the steps to measure at, in place of ``every``.
        budget: the share of the training time that measuring may take: the first step is
            measured, and then a step as soon as the time spent so far plus another measurement
            is within the share.
        clock: returns the time in seconds.

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
        self.every = check_every(every)
        if budget is not None and not isinstance(budget, SupportsFloat):
            raise ArgumentTypeError(f"budget must be a number, got {budget!r}.")
        if budget is not None and not 0 < budget < float("inf"):
            raise InputError(f"budget is a share of the training time above 0, got {budget}.")
        if budget is not None and steps is not None:
            raise InputError("give steps or a budget, not both: each decides when to measure.")
        self.steps = None if steps is None else _check_steps(steps)
        self.budget = budget
        self.spent = 0.0
        self._clock = clock
        self._began: float | None = None
        self._last: int | None = None
        self._spent_before = self._cost = 0.0

    def due(self, step: int) -> bool:
        """Return whether to measure at a step; called once for each."""
        if self._began is None:
            self._began = self._clock()
        if self.steps is not None:
            return step in self.steps
        if self.budget is None:
            return step % self.every == 0
        if self._last is not None:
            # Expect the cost of the last measurement, or of the one before it: the last may not
            # be complete, because some probes also run at the step after it.
            last = self.spent - self._spent_before
            if self.spent + max(last, self._cost) > self.budget * self._training_time:
                return False
            self.every, self._cost = step - self._last, last
        self._last, self._spent_before = step, self.spent
        return True

    @property
    def _training_time(self) -> float:
        now = self._clock()
        return now - (now if self._began is None else self._began) - self.spent

    @property
    def overhead(self) -> float:
        """Time spent on measuring over the time of the training without it."""
        training = self._training_time
        return self.spent / training if training > 0 else float("inf") if self.spent else 0.0

    def settings(self) -> dict[str, Any]:
        """Return what determines the measured steps, for a report."""
        if self.steps is not None:
            return {"steps": f"{len(self.steps)} given"}
        if self.budget is not None:
            return {"budget": float(self.budget)}
        return {"every": self.every}

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Count the time inside the context as spent on measuring."""
        start = self._clock()
        try:
            yield
        finally:
            self.spent += self._clock() - start


def check_every(every: object, what: str = "every") -> int:
    """Return a number of steps between measurements as an int.

    Args:
        every: the number.
        what: its name in an error.

    Returns:
        The same as an int.

    Raises:
        ArgumentTypeError: if it is not a number.
        InputError: if it is not an integer or less than 1.

    >>> check_every(50.0)
    50
    """
    if not isinstance(every, numbers.Real):
        raise ArgumentTypeError(f"{what} must be an integer number of steps, got {every!r}.")
    number = float(every)
    if isinstance(every, bool) or not number.is_integer() or number < 1:
        raise InputError(f"{what} must be an integer of at least 1, got {every}.")
    return int(number)


def _check_steps(steps: Iterable[int]) -> frozenset[int]:
    given = list(steps) if isinstance(steps, Iterable) else [steps]
    is_list = isinstance(steps, Iterable) and not isinstance(steps, str)
    if not is_list or not all(isinstance(step, numbers.Real) for step in given):
        raise ArgumentTypeError(f"steps must be a list of step numbers, got {steps!r}.")
    if any(step < 0 or not float(step).is_integer() for step in given):
        raise InputError(f"steps must be integers from 0 on, got {given}.")
    return frozenset(int(step) for step in given)
