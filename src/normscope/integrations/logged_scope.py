"""A scope that logs its measurements while the training runs, and the base of trainer callbacks."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import xarray as xr

from normscope.errors import ArgumentTypeError, InputError, StateError
from normscope.integrations.logger import Logger
from normscope.probes import Scope
from normscope.probes.probe import choose_probes
from normscope.probes.ray import check_distances
from normscope.probes.schedule import Schedule
from normscope.problem.loss import WholeLoss
from normscope.registry import unknown_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import nn
    from torch.optim import Optimizer

    from normscope.problem.loss import Loss

_LOGGED_IF_NAN = ("loss",)  # NaN is a value there; elsewhere it means not measured
_HISTOGRAM_VARIABLES = ("histogram", "histogram_low", "histogram_high")
_SCHEDULE_OPTIONS = ("every", "steps", "budget")
_SET_BY_CALLBACK = ("model", "loss", "optimizer")


class LoggedScope:
    """A scope that logs every measured number as soon as it is known.

    Use it in place of the scope: ``step``, ``close`` and ``with`` are the scope's own; everything
    else is read from ``scope``. Values that only the next step completes are logged then, under
    the step they belong to.

    Args:
        scope: an open scope, driven by this object from now on.
        logger: a ``SummaryWriter`` or any other object with
            ``add_scalar(tag, value, step)``. If it has ``add_histogram_raw``, it receives the
            histograms of activations; if it has ``flush``, it is flushed after each measured step.
        prefix: of all tags.
        details: whether values along the gradient's ray and of single units are logged too.
        first_step: logged step of the scope's step 0, for a training resumed from a checkpoint.

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
        _check_logger(logger)
        self.scope = scope
        self._logger = logger
        self._prefix = prefix
        self._details = details
        self._first_step = first_step
        self._row = 0  # the last step of which something was sent
        self._sent: set[str] = set()  # the tags sent of that step
        self._awaits_next = False  # the next step may complete the last measured one

    @property
    def results(self) -> xr.Dataset:
        """All that was measured."""
        return self.scope.results

    def step(self, x: Any, y: Any = None) -> bool:
        """Measure this training step if it is due, and log new values.

        Args:
            x: as `Scope.step` takes it.
            y: as `Scope.step` takes it.

        Returns:
            Whether the step was measured.
        """
        measured = self.scope.step(x, y)
        if measured or self._awaits_next:
            self.send()
        self._awaits_next = measured
        return measured

    def send(self) -> None:
        """Log what was measured since the last call."""
        rows = self.scope.results_since(self._row)
        for index in range(rows.sizes.get("step", 0)):
            for step, tag, value in _entries(rows.isel(step=[index]), self._prefix, self._details):
                if step != self._row:
                    self._row, self._sent = step, set()
                if tag not in self._sent:
                    _send(self._logger, step + self._first_step, tag, value)
                    self._sent.add(tag)
        _flush(self._logger)

    def close(self) -> None:
        """Stop measuring; the results stay. The logger stays open: its owner closes it."""
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
    """Log the results of a scope afterwards, for example a record of a store.

    Args:
        results: of a scope.
        logger: as `LoggedScope` takes it.
        prefix: of all tags.
        details: whether values along the gradient's ray and of single units are logged too.

    Raises:
        InputError: if the results have no dimension ``step``.
    """
    _check_logger(logger)
    if "step" not in results.dims and results.data_vars:
        raise InputError(
            "results of a scope have the dimension step, got "
            f"{tuple(map(str, results.dims))}; give scope.results, or the dataset of one record "
            "of a store."
        )
    for entry in _entries(results, prefix, details):
        _send(logger, *entry)
    _flush(logger)


def _check_logger(logger: object) -> None:
    if not isinstance(logger, Logger):
        raise ArgumentTypeError(
            "a logger has a method add_scalar(tag, value, step), such as a SummaryWriter of "
            f"TensorBoard, got {type(logger).__name__}."
        )


def _flush(logger: Any) -> None:
    if hasattr(logger, "flush"):
        logger.flush()


class Histogram(NamedTuple):
    """The binned activations of one unit; ``edges`` has one entry more than ``counts``."""

    edges: np.ndarray
    counts: np.ndarray


Entry = tuple[int, str, float | Histogram]  # step, tag and value


def _send(logger: Any, step: int, tag: str, value: float | Histogram) -> None:
    """Log a value, a histogram only if the logger takes histograms.

    Sum and sum of squares of a histogram count each value at the middle of its bin.
    """
    if not isinstance(value, Histogram):
        logger.add_scalar(tag, value, step)
    elif hasattr(logger, "add_histogram_raw"):
        edges, counts = value
        middles = (edges[1:] + edges[:-1]) / 2
        logger.add_histogram_raw(
            tag,
            min=float(edges[0]),
            max=float(edges[-1]),
            num=int(counts.sum()),
            sum=float(counts @ middles),
            sum_squares=float(counts @ middles**2),
            bucket_limits=edges[1:].tolist(),
            bucket_counts=counts.tolist(),
            global_step=step,
        )


def _entries(results: xr.Dataset, prefix: str = "scope", details: bool = False) -> Iterator[Entry]:
    """Yield the numbers of a scope's results, step by step, then the histograms of activations.

    A tag is ``scope/loss``, or ``scope_gradient_norm/net.0`` if there is a number for each layer:
    TensorBoard and others group tags by their beginning. What was not measured is left out.

    Args:
        results: of a scope, or some of its steps.
        prefix: of every tag.
        details: whether to yield values along the gradient's ray and of single units; if not, the
            ray is represented by its ``_low`` and ``_high``, and units are averaged.

    Yields:
        Step, tag and value of each.

    >>> norms = (("step", "layer"), [[2.0, np.nan]])
    >>> results = xr.Dataset({"gradient_norm": norms}, {"step": [7], "layer": ["a", "b"]})
    >>> list(_entries(results))
    [(7, 'scope_gradient_norm/a', 2.0)]
    """
    columns = [
        (tags, values, name in _LOGGED_IF_NAN)
        for name, variable in results.data_vars.items()
        if name not in _HISTOGRAM_VARIABLES
        for tags, values in _columns(str(name), variable, prefix, details)
    ]
    for index, step in enumerate(results["step"].values.tolist() if columns else ()):
        for tags, values, with_nan in columns:
            for tag, value in zip(tags, values[index].tolist(), strict=True):
                if with_nan or not np.isnan(value):
                    yield step, tag, value
    if "histogram" in results:
        yield from _histograms(results, prefix)


def _histograms(results: xr.Dataset, prefix: str) -> Iterator[Entry]:
    """Yield one histogram for each step and unit."""
    counts = results["histogram"].values
    ends = results["histogram_low"].values, results["histogram_high"].values
    tags = _tags(results["histogram"].isel(step=0, bin=0), f"{prefix}_activation")
    for index, step in enumerate(results["step"].values.tolist()):
        flat = counts[index].reshape(len(tags), -1)
        rows = zip(tags, flat, *(end[index].ravel() for end in ends), strict=True)
        for tag, row, low, high in rows:
            if np.isfinite(row).all():
                yield step, tag, Histogram(np.linspace(low, high, len(row) + 1), row)


def _columns(
    name: str, variable: xr.DataArray, prefix: str, details: bool
) -> Iterator[tuple[list[str], np.ndarray]]:
    """Yield tags, and values of shape (step, tag)."""
    if not details:
        if "distance" in variable.dims:
            return
        if "unit" in variable.dims:  # xarray's mean would warn where a layer has no unit
            count = variable.notnull().sum("unit")
            variable = variable.fillna(0).sum("unit").where(count > 0) / count.where(count > 0)
    if variable.ndim == 1:
        yield [f"{prefix}/{name}"], variable.values[:, None]
    elif variable.size:
        tags = _tags(variable.isel(step=0), f"{prefix}_{name}")
        yield tags, variable.transpose("step", ...).values.reshape(-1, len(tags))


def _tags(values: xr.DataArray, stem: str) -> list[str]:
    """Return one tag for each value: the stem, then a part for each dimension."""
    tags = [stem]
    for dimension in values.dims:
        parts = [
            # The module that owns weights itself has no name.
            (label or "model") if isinstance(label, str) else f"{dimension}_{label:g}"
            for label in values[dimension].values.tolist()
        ]
        tags = [f"{tag}/{part}" for tag in tags for part in parts]
    return tags


class ScopeCallbackBase:
    """Base of trainer callbacks: opens a scope when training starts and closes it at the end.

    Args:
        loss: as `Scope` takes it.
        options: the other arguments of `Scope`, except the model and the optimizer.
        start: what starts a training, for an error.
    """

    def __init__(
        self, loss: Loss | WholeLoss | str, options: Mapping[str, Any], start: str
    ) -> None:
        _check_options(options)
        self._loss = loss
        self._options = options
        self._start = start
        self._scope: Scope | None = None
        self._active: Scope | LoggedScope | None = None

    @property
    def scope(self) -> Scope:
        """The scope, once a training has started."""
        if self._scope is None:
            raise StateError(f"there is no scope before the training starts; call {self._start}.")
        return self._scope

    @property
    def results(self) -> xr.Dataset:
        """All that was measured."""
        return self.scope.results

    def plot(self) -> Figure:
        """Draw what was measured.

        Returns:
            The figure, as `normscope.Scope.plot` returns it.
        """
        return self.scope.plot()

    def _open_scope(
        self, model: nn.Module, optimizer: Optimizer, logger: Logger | None, first_step: int
    ) -> None:
        self._scope = self._active = Scope(model, self._loss, optimizer, **self._options)
        if logger is not None:
            self._active = LoggedScope(self._scope, logger, first_step=first_step)

    def _measure(self, batch: Any) -> None:
        """Measure a step on a batch as the trainer has it."""
        assert self._active is not None
        is_pair = isinstance(batch, tuple | list) and len(batch) == 2
        if is_pair and not isinstance(self._loss, WholeLoss):
            self._active.step(*batch)
        else:
            self._active.step(batch)

    def _close_scope(self, error: BaseException | None = None) -> None:
        if self._active is not None:
            self._active.__exit__(None if error is None else type(error), error, None)
            self._active = None


def _check_options(options: Mapping[str, Any]) -> None:
    """Raise now what the scope would raise when the training starts."""
    known = [name for name in inspect.signature(Scope).parameters if name not in _SET_BY_CALLBACK]
    for name in options:
        if name not in known:
            raise unknown_name("option", name, known, "of ScopeCallback")
    choose_probes(options.get("probes", "all"))
    Schedule(**{name: options[name] for name in _SCHEDULE_OPTIONS if name in options})
    if options.get("distances") is not None:
        check_distances(options["distances"])
