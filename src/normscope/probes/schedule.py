"""At which steps a scope measures."""

from __future__ import annotations

import numbers
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import SupportsFloat

from normscope.errors import ArgumentTypeError, InputError

__all__ = ["Schedule", "checked_every"]


class Schedule:
    """Every so many steps, at given steps, or as often as a share of the training time allows.

    Args:
        every: steps from one measurement to the next.
        steps: the steps to measure at, in place of ``every``.
        budget: the share of the training time that measuring may take: the first step is
            measured, and then a step as soon as the time spent so far and the cost of another
            measurement are within the share.
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
        self.every = checked_every(every)
        if budget is not None and not isinstance(budget, SupportsFloat):
            raise ArgumentTypeError(f"budget must be a number, got {budget!r}.")
        if budget is not None and not 0 < budget < float("inf"):
            raise InputError(f"budget is a share of the training time above 0, got {budget}.")
        if budget is not None and steps is not None:
            raise InputError("give steps or a budget, not both: each says when to measure.")
        self.steps = None if steps is None else _checked(steps)
        self.budget = budget
        self.spent = 0.0
        self._clock = clock
        self._began: float | None = None
        self._last: int | None = None
        self._spent_before = self._cost = 0.0

    def due(self, step: int) -> bool:
        """Whether to measure at a step; called once for each."""
        if self._began is None:
            self._began = self._clock()
        if self.steps is not None:
            return step in self.steps
        if self.budget is None:
            return step % self.every == 0
        if self._last is not None:
            # what the last measurement cost the coming one will cost too; or the one before it,
            # since a look at the step after the last may be yet to come
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


def checked_every(every: object, what: str = "every") -> int:
    """A number of steps from one measurement to the next.

    Args:
        every: the number.
        what: what it is called in an error.

    Returns:
        The same as an int.

    Raises:
        ArgumentTypeError: if it is not a number.
        InputError: if it is not whole or less than 1.

    >>> checked_every(50.0)
    50
    """
    if not isinstance(every, numbers.Real):
        raise ArgumentTypeError(f"{what} must be a whole number of steps, got {every!r}.")
    number = float(every)
    if isinstance(every, bool) or not number.is_integer() or number < 1:
        raise InputError(f"{what} must be a whole number of at least 1, got {every}.")
    return int(number)


def _checked(steps: Iterable[int]) -> frozenset[int]:
    given = list(steps) if isinstance(steps, Iterable) else [steps]
    is_list = isinstance(steps, Iterable) and not isinstance(steps, str)
    if not is_list or not all(isinstance(step, numbers.Real) for step in given):
        raise ArgumentTypeError(f"steps must be a list of step numbers, got {steps!r}.")
    if any(step < 0 or not float(step).is_integer() for step in given):
        raise InputError(f"steps must be whole numbers from 0 on, got {given}.")
    return frozenset(int(step) for step in given)
