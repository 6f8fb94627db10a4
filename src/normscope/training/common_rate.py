"""An optimizer behind one learning rate, with what a training does around its steps."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from normscope.errors import ArgumentTypeError, InputError
from normscope.training.optimizers import needs_closure, take_step

SchedulerFactory: TypeAlias = Callable[[Optimizer], LRScheduler]


def base_rates(optimizer: Optimizer, is_scheduled: bool = False) -> list[float]:
    """Return the learning rate of every group before a schedule that is about to start.

    Args:
        optimizer: any torch optimizer.
        is_scheduled: whether a schedule starts; if not, the present rates count.

    Returns:
        The ``lr`` of every group. For a new schedule, or if all are zero as at the start of a
        warm-up: the ``initial_lr`` that an earlier scheduler has kept, where it has.
    """
    groups = optimizer.param_groups
    present = [float(group["lr"]) for group in groups]
    if any(present) and not is_scheduled:
        return present
    return [float(group.get("initial_lr", group["lr"])) for group in groups]


def relative_rates(optimizer: Optimizer, is_scheduled: bool = False) -> list[float]:
    """Return the learning rate of every group over the largest one.

    Args:
        optimizer: any torch optimizer.
        is_scheduled: as in `base_rates`.

    Returns:
        Numbers from 0 to 1; all 1 if all rates are zero.

    >>> line = torch.nn.Linear(2, 1)
    >>> groups = [{"params": line.weight}, {"params": line.bias, "lr": 0.05}]
    >>> relative_rates(torch.optim.SGD(groups, lr=0.1))
    [1.0, 0.5]
    """
    rates = base_rates(optimizer, is_scheduled)
    largest = max(rates)
    return [rate / largest if largest > 0 else 1.0 for rate in rates]


def make_scheduler(factory: SchedulerFactory, optimizer: Optimizer) -> LRScheduler:
    """Return the scheduler that a factory makes, once it is known to need no metric.

    Args:
        factory: from an optimizer to a scheduler that is stepped after every update.
        optimizer: any torch optimizer; its learning rates follow the schedule from now on.

    Returns:
        The scheduler.

    Raises:
        ArgumentTypeError: if it is not a scheduler, or its ``step`` needs a metric.
    """
    made: Any = factory(optimizer) if callable(factory) else factory
    step = getattr(made, "step", None)
    if not callable(factory) or not callable(step) or isinstance(made, Optimizer):
        raise ArgumentTypeError(
            "scheduler must be a function from an optimizer to a scheduler, such as lambda "
            f"optimizer: LinearLR(optimizer, total_iters=10); got {type(made).__name__}."
        )
    needed = inspect.signature(step).parameters.values()
    if isinstance(made, ReduceLROnPlateau) or any(
        each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD for each in needed
    ):
        raise ArgumentTypeError(
            f"{type(made).__name__} follows a metric, which short runs do not have; leave "
            "scheduler= out, or give one that counts steps."
        )
    scheduler: LRScheduler = made
    return scheduler


def _own_rates(scheduler: LRScheduler, optimizer: Optimizer) -> list[float]:
    """Return ``max_lr`` of every group for a scheduler that has rates of its own.

    OneCycleLR and CyclicLR do not use the learning rate that the optimizer was made with; all
    others do, and have none.
    """
    given = getattr(scheduler, "max_lrs", None)  # CyclicLR
    rates = given or [group["max_lr"] for group in optimizer.param_groups if "max_lr" in group]
    return [float(rate) for rate in rates]


class CommonRate(Optimizer):
    """An optimizer with one learning rate in place of its groups' and its schedule's.

    The largest rate of a group before any schedule is the one that counts; with OneCycleLR and
    CyclicLR the largest ``max_lr``. Every other rate, of a group or of a later step, keeps its
    ratio to it: a step at the rate r multiplies all of them by r over that rate. Gradients may be
    clipped first.

    Attributes:
        group_rates: of every group, in units of the common rate, before any schedule.
        has_own_rates: whether these are the ``max_lr`` of the scheduler.

    Args:
        optimizer: takes the steps; its parameters are this one's.
        scheduler: makes a scheduler, which is stepped after every update; None: rates are constant.
        clip_norm: largest norm of the gradient of all parameters; None: not clipped.
        accumulate: batches whose mean gradient a training loop takes for one step.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        scheduler: SchedulerFactory | None = None,
        clip_norm: float | None = None,
        accumulate: int = 1,
    ) -> None:
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        rates = base_rates(optimizer, scheduler is not None)
        super().__init__(parameters, {"lr": max(rates)})
        self.inner, self._clip_norm, self.accumulate = optimizer, clip_norm, accumulate
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate  # a schedule begins there
            for name in ("initial_lr", "max_lr"):  # of an earlier schedule
                group.pop(name, None)
        if scheduler is not None and not max(rates) > 0:
            raise InputError(
                "the optimizer has the learning rate 0, of which a schedule gives no other; make "
                "it with a positive one."
            )
        self._scheduler = None if scheduler is None else make_scheduler(scheduler, optimizer)
        own = [] if self._scheduler is None else _own_rates(self._scheduler, optimizer)
        self.has_own_rates, rates = bool(own), own or rates
        self._largest = max(rates)
        self.group_rates = [each / self._largest if self._largest > 0 else 1.0 for each in rates]

    @property
    def needs_closure(self) -> bool:
        """Whether a step evaluates the loss again."""
        return needs_closure(self.inner)

    @property
    def relative_rates(self) -> list[float]:
        """The rate of every group at the coming step, in units of the common rate."""
        groups, largest = self.inner.param_groups, self._largest
        return [float(group["lr"]) / largest if largest > 0 else 1.0 for group in groups]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Clip the gradient, take a step at the common rate, and step the schedule.

        Args:
            closure: passed on to the optimizer.

        Raises:
            InputError: if the schedule ends before the run.
        """
        parameters = self.param_groups[0]["params"]
        if self._clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(parameters, self._clip_norm)
        with self._scaled():
            take_step(self.inner, closure)
        if self._scheduler is not None:
            self.step_schedule()

    def step_schedule(self) -> None:
        """Step the schedule alone.

        Raises:
            InputError: if the schedule has ended.
        """
        assert self._scheduler is not None
        try:
            self._scheduler.step()
        except ValueError as error:  # OneCycleLR beyond its last step
            raise InputError(
                f"the schedule is shorter than a short run ({error}); give a longer one."
            ) from error

    @contextmanager
    def _scaled(self) -> Iterator[None]:
        """Scale the rates for one step: the scheduler continues from its own."""
        own = [group["lr"] for group in self.inner.param_groups]
        rate = float(self.param_groups[0]["lr"])
        for group, relative in zip(self.inner.param_groups, self.relative_rates, strict=True):
            group["lr"] = rate * relative
        try:
            yield
        finally:
            for group, each in zip(self.inner.param_groups, own, strict=True):
                group["lr"] = each

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the optimizer and of its schedule, and the common rate."""
        schedule = None if self._scheduler is None else self._scheduler.state_dict()
        rate = self.param_groups[0]["lr"]
        return {"optimizer": self.inner.state_dict(), "schedule": schedule, "rate": rate}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state that `state_dict` returned.

        Args:
            state_dict: what it returned, of an optimizer made in the same way.
        """
        self.inner.load_state_dict(state_dict["optimizer"])
        if self._scheduler is not None:
            self._scheduler.load_state_dict(state_dict["schedule"])
        self.param_groups[0]["lr"] = state_dict["rate"]
