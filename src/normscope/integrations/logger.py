"""The logger interface: the part of TensorBoard's SummaryWriter that every service can provide."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from typing import Any, Protocol, runtime_checkable

from normscope.errors import StateError


@runtime_checkable
class Logger(Protocol):
    """Anything that takes one number at a time, such as a ``SummaryWriter``."""

    def add_scalar(self, tag: str, value: float, step: int, /) -> object:
        """Log a number.

        Args:
            tag: its name, such as "scope_gradient_norm/net.0".
            value: the number; not finite if a training diverged.
            step: of the training.
        """
        ...


class RowLogger(ABC):
    """Base of loggers for services that take all numbers of a step at once.

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
        """Send the values of one step to the service.

        Args:
            step: of the training.
            values: by name; at least one.
        """

    def add_scalar(self, tag: str, value: float, step: int, /) -> None:
        """Collect a number; those of the step before are sent.

        Args:
            tag: its name.
            value: the number.
            step: of the training.
        """
        self.collect(tag, float(value), step)

    def collect(self, tag: str, value: Any, step: int) -> None:
        """Collect a number or any other value that the service accepts.

        Args:
            tag: its name.
            value: the value.
            step: of the training.
        """
        if step != self._step:
            self.flush()
        self._step = step
        self._values[tag] = value

    def flush(self) -> None:
        """Send what was collected so far."""
        values, self._values = self._values, {}
        if values:
            self.log_row(self._step, values)


def require_package(name: str, user: str) -> Any:
    """Import an optional package, whose extra of normscope has the same name.

    Args:
        name: of the package.
        user: the module that needs it, for the error.

    Returns:
        The imported package.

    Raises:
        StateError: if the package is not installed.

    >>> require_package("math", "this example").pi > 3
    True
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise StateError(
            f"{user} needs the package {name}; install it by pip install 'normscope[{name}]'."
        ) from error
