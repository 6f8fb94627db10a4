"""What normscope asks of a logger: the part of TensorBoard's SummaryWriter that all can give."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

__all__ = ["FlushingLogger", "HistogramLogger", "Logger", "RowLogger"]


@runtime_checkable
class Logger(Protocol):
    """Anything that takes one number at a time; a ``SummaryWriter`` does."""

    def add_scalar(self, tag: str, value: float, step: int, /) -> object:
        """Take a number.

        Args:
            tag: its name, such as "scope_gradient_norm/net.0".
            value: the number; not finite if a training diverged.
            step: of the training.
        """
        ...


@runtime_checkable
class HistogramLogger(Protocol):
    """A logger that takes counted histograms too; a ``SummaryWriter`` does."""

    def add_histogram_raw(
        self,
        tag: str,
        min: float,
        max: float,
        num: int,
        sum: float,
        sum_squares: float,
        bucket_limits: Sequence[float],
        bucket_counts: Sequence[float],
        global_step: int,
    ) -> object:
        """Take a histogram.

        Args:
            tag: its name.
            min: the least value.
            max: the largest value.
            num: how many values there are.
            sum: of the values.
            sum_squares: of the values.
            bucket_limits: upper end of each bin.
            bucket_counts: values in each bin.
            global_step: of the training.
        """
        ...


@runtime_checkable
class FlushingLogger(Protocol):
    """A logger that may keep numbers back; a ``SummaryWriter`` does."""

    def flush(self) -> object:
        """Pass on what was kept back."""
        ...


class RowLogger(ABC):
    """For services that take all numbers of a step at once: collects them, step by step.

    Examples:
        >>> class Printed(RowLogger):
        ...     def log_row(self, step, values):
        ...         print(step, values)
        >>> logger = Printed()
        >>> logger.add_scalar("loss", 2.0, 0)
        >>> logger.add_scalar("rate", 0.5, 0)
        >>> logger.add_scalar("loss", 1.0, 1)
        0 {'loss': 2.0, 'rate': 0.5}
        >>> logger.flush()
        1 {'loss': 1.0}
    """

    def __init__(self) -> None:
        self._step = 0
        self._values: dict[str, Any] = {}

    @abstractmethod
    def log_row(self, step: int, values: dict[str, Any]) -> None:
        """Pass on what was logged at one step.

        Args:
            step: of the training.
            values: by name; at least one.
        """

    def add_scalar(self, tag: str, value: float, step: int, /) -> None:
        """Take a number; those of the step before are passed on.

        Args:
            tag: its name.
            value: the number.
            step: of the training.
        """
        self.collect(tag, float(value), step)

    def collect(self, tag: str, value: Any, step: int) -> None:
        """Take a number or whatever else the service knows.

        Args:
            tag: its name.
            value: the number.
            step: of the training.
        """
        if step != self._step:
            self.flush()
        self._step = step
        self._values[tag] = value

    def flush(self) -> None:
        """Pass on what was collected so far."""
        values, self._values = self._values, {}
        if values:
            self.log_row(self._step, values)
