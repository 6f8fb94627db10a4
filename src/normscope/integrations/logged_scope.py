"""A scope whose measurements appear in a logger while the training runs."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import xarray as xr

from normscope.errors import ArgumentTypeError, InputError
from normscope.integrations.logger import FlushingLogger, Logger
from normscope.integrations.tags import Histogram, Scalar, histograms, scalars

if TYPE_CHECKING:
    from normscope.probes import Scope

__all__ = ["LoggedScope", "log_results"]


class LoggedScope:
    """A scope that passes on every measured number as soon as it is known.

    Used in place of the scope: ``step``, ``close`` and ``with`` are the scope's own; all else is
    read from ``scope``. What only the next step shows is passed on then, under the step it
    belongs to.

    Args:
        scope: open, in the hands of this object from now on.
        logger: a ``SummaryWriter`` or any other object with
            ``add_scalar(tag, value, step)``; one with ``add_histogram_raw`` is given the
            histograms of activations, one with ``flush`` is flushed after each measured step.
        prefix: of all names.
        details: whether values along the gradient's ray and of single units are passed on too.
        first_step: what the scope's step 0 is called, for a training that goes on from a
            checkpoint.

    Examples:
        >>> import torch
        >>> from normscope.probes import Scope
        >>> class Printed:
        ...     def add_scalar(self, tag, value, step):
        ...         print(step, tag, value)
        >>> line = torch.nn.Linear(1, 1, bias=False)
        >>> _ = torch.nn.init.ones_(line.weight)
        >>> scope = LoggedScope(Scope(line, "squared_error", probes="gradient_norms"), Printed())
        >>> scope.step(torch.ones(4, 1), torch.zeros(4, 1))  # w^2 / 2 and w
        0 scope/loss 0.5
        0 scope_gradient_norm/Linear 1.0
        True
    """

    def __init__(
        self,
        scope: Scope,
        logger: Logger,
        prefix: str = "scope",
        details: bool = False,
        first_step: int = 0,
    ) -> None:
        _refuse_other(logger)
        self.scope = scope
        self._logger = logger
        self._prefix = prefix
        self._details = details
        self._first_step = first_step
        self._row = 0  # the last step of which something was sent
        self._sent: set[str] = set()  # the names sent of that step
        self._awaited = False  # the next step may complete what was measured at the last

    @property
    def results(self) -> xr.Dataset:
        """All that was measured."""
        return self.scope.results

    def step(self, x: Any, y: Any = None) -> bool:
        """Look at this step of the training, and pass on what is new.

        Args:
            x: as `Scope.step` takes it.
            y: as `Scope.step` takes it.

        Returns:
            Whether the step was measured.
        """
        measured = self.scope.step(x, y)
        if measured or self._awaited:
            self.send()
        self._awaited = measured
        return measured

    def send(self) -> None:
        """Pass on what was measured since the last time."""
        rows = self.scope.results_since(self._row)
        for place in range(rows.sizes.get("step", 0)):
            for entry in _entries(rows.isel(step=[place]), self._prefix, self._details):
                if entry.step != self._row:
                    self._row, self._sent = entry.step, set()
                if entry.tag not in self._sent:
                    entry.send(self._logger, entry.step + self._first_step)
                    self._sent.add(entry.tag)
        _flush(self._logger)

    def close(self) -> None:
        """End the measuring; the results stay. The logger is left open: it is its owner's."""
        self.scope.close()
        self.send()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.scope.__exit__(kind, error, trace)
        self.send()

    def __repr__(self) -> str:
        return f"LoggedScope({self.scope!r}, {type(self._logger).__name__})"


def log_results(
    results: xr.Dataset, logger: Logger, prefix: str = "scope", details: bool = False
) -> None:
    """Give a logger what a scope has measured, such as a record of a store.

    Args:
        results: of a scope.
        logger: as `LoggedScope` takes it.
        prefix: of all names.
        details: whether values along the gradient's ray and of single units are passed on too.

    Raises:
        InputError: if the results have no dimension ``step``.
    """
    _refuse_other(logger)
    if "step" not in results.dims and results.data_vars:
        raise InputError(
            "results of a scope have the dimension step, got "
            f"{tuple(map(str, results.dims))}; give scope.results, or the dataset of one record "
            "of a store."
        )
    for entry in _entries(results, prefix, details):
        entry.send(logger, entry.step)
    _flush(logger)


def _entries(rows: xr.Dataset, prefix: str, details: bool) -> Iterator[Scalar | Histogram]:
    yield from scalars(rows, prefix, details)
    yield from histograms(rows, prefix)


def _flush(logger: Logger) -> None:
    if isinstance(logger, FlushingLogger):
        logger.flush()


def _refuse_other(logger: object) -> None:
    if not isinstance(logger, Logger):
        raise ArgumentTypeError(
            "a logger has a method add_scalar(tag, value, step), such as a SummaryWriter of "
            f"TensorBoard, got {type(logger).__name__}."
        )
