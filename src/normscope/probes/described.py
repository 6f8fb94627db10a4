"""What a scope watches and when it measures, in words and numbers for its report."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from normscope.problem.loss import WholeLoss

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from normscope.probes.schedule import Schedule
    from normscope.probes.subject import Subject

__all__ = ["scope_settings"]

_MOST = 4  # values of a list that are told


def scope_settings(subject: Subject, schedule: Schedule) -> dict[str, Any]:
    """Loss, optimizer with its settings as they are now, and the steps that are measured.

    Args:
        subject: model, loss and optimizer.
        schedule: of the measurements.

    Returns:
        Plain values by name.
    """
    found: dict[str, Any] = {"loss": _named(subject.loss)}
    if subject.optimizer is not None:
        found["optimizer"] = _optimizer(subject.optimizer)
    if subject.learning_rate is not None:
        found["learning_rate"] = float(subject.learning_rate)
    if schedule.steps is not None:
        found["steps"] = f"{len(schedule.steps)} given"
    elif schedule.budget is not None:
        found["budget"] = float(schedule.budget)
    else:
        found["every"] = schedule.every
    return found


def _named(loss: object) -> str:
    """A loss by its registered name, that of its function, or that of its class.

    >>> _named("cross_entropy"), _named(len)
    ('cross_entropy', 'len')
    """
    if isinstance(loss, str):
        return loss
    if isinstance(loss, WholeLoss):
        return f"{_named(loss.function)} (whole loss)"
    return str(getattr(loss, "__name__", type(loss).__name__))


def _optimizer(optimizer: Optimizer) -> str:
    """The class with its settings; what is off is left out, what differs by group is told."""
    groups = [
        {name: _plain(value) for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]
    names = list(dict.fromkeys(name for group in groups for name in group))
    told = []
    for name in names:
        values = list(dict.fromkeys(str(group.get(name)) for group in groups))
        if name == "lr" or values not in (["None"], ["False"], ["0"], ["0.0"]):
            told.append(f"{name} {' or '.join(values)}")
    return ", ".join([type(optimizer).__name__, *told])


def _plain(value: Any) -> Any:
    """A number or short list of what a group holds; of a long one its length."""
    if hasattr(value, "tolist"):
        value = value.item() if math.prod(value.shape) == 1 else value.tolist()
    is_long = isinstance(value, list | tuple) and len(value) > _MOST
    return f"of {len(value)} values" if is_long else value
