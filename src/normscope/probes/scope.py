"""The scope: probes attached to a training loop, which runs as if they were not there."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import xarray as xr

from normscope.errors import StateError
from normscope.probes.cost import ScopeCost, scope_cost
from normscope.probes.described import scope_settings
from normscope.probes.execution import weight_layers
from normscope.probes.logbook import Logbook
from normscope.probes.observer import Observer
from normscope.probes.presets import ProbeChoice, chosen_probes
from normscope.probes.ray import DISTANCES, checked_distances
from normscope.probes.schedule import Schedule
from normscope.probes.subject import Subject, is_measuring_process, unwrapped
from normscope.probes.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from normscope.problem.loss import Loss, WholeLoss
    from normscope.results import Store

__all__ = ["Scope"]


class Scope:
    """Probes on a training under way; the training ends in the same bits with and without it.

    Call ``scope.step(x, y)`` once for each update, before ``optimizer.step()``. Nothing of the
    model, its gradients, the optimizer or the random numbers is changed, also after an exception
    or Ctrl-C inside a probe. The scope takes the gradient on (x, y) itself and does not read
    ``.grad``, unless told what that holds: with gradient accumulation, loss scaling or clipping it
    is something else.

    The modules keep the ``training`` flags they have. Inside autocast the passes are autocast too,
    but not the products with curvature matrices.
    Models are looked at inside torch.compile and DistributedDataParallel; of several processes
    the one of rank 0 measures, on its own batch and without waiting for the others.

    Args:
        model: any module whose parameters are on one device.
        loss: as `normscope.Problem` takes it: ``loss(output, target)``, the mean over samples, a
            registered name, or a `whole_loss`.
        optimizer: the one that trains the model: it gives the learning rate of each parameter
            group and the update. It is read, never stepped.
        probes: "all", "economy", "standard", "full", or names and configured probes.
        every: steps from one measurement to the next; the first step is measured.
        steps: the steps to measure at, in place of ``every``.
        budget: the share of the training time that measuring may take, such as 0.1, in place of
            ``every``: follows the clock, so that two runs may measure at different steps.
        store: keeps every measured step as soon as it is complete.
        learning_rate: in place of the optimizer's; needed without one by the probes that use it.
        seed: of sampled units and of dropout and noise in the passes of the scope.
        distances: of the points on the gradient's ray, in multiples of the learning rate.
        name: the experiment's name in the store.
        labels: parameters of the record in the store, which tell this training from others.

    Examples:
        >>> import torch
        >>> line = torch.nn.Linear(1, 1, bias=False)
        >>> _ = torch.nn.init.ones_(line.weight)
        >>> sgd = torch.optim.SGD(line.parameters(), lr=0.5)
        >>> scope = Scope(line, "squared_error", sgd, probes="loss_variation", distances=[1, 2, 3])
        >>> _ = scope.step(torch.ones(4, 1), torch.zeros(4, 1))
        >>> scope.results["ray_loss"].values.tolist()  # w^2 / 2 at w = 1/2, 0, -1/2
        [[0.125, 0.0, 0.125]]
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss | WholeLoss | str,
        optimizer: Optimizer | None = None,
        probes: ProbeChoice = "all",
        every: int = 50,
        steps: Iterable[int] | None = None,
        budget: float | None = None,
        store: Store | None = None,
        learning_rate: float | None = None,
        seed: int = 0,
        distances: Sequence[float] | None = None,
        name: str = "scope",
        labels: Mapping[str, Any] | None = None,
    ) -> None:
        self._subject = Subject(unwrapped(model), loss, optimizer, learning_rate, seed)
        points = checked_distances(DISTANCES if distances is None else distances)
        self._probes = [probe.begin(seed) for probe in chosen_probes(probes)]
        self._subject.refuse_unfit(self._probes)
        self._schedule = Schedule(every, steps, budget)
        self._table = Table(self._probes, type(self._subject.model).__name__)
        measures = is_measuring_process()
        self._labels = dict(labels or {})
        self._log = Logbook(self._table, store if measures else None, name, self._labels, seed)
        self._observer = Observer(self._subject, self._probes, points, self._table, self._log)
        self._step = 0
        self._closed = False

    def step(self, x: Any, y: Any = None, loss: float | Tensor | None = None) -> bool:
        """Look at this step of the training, if it is one to be measured.

        To be called once for each update, when the gradient is there and before the optimizer
        takes its step; with gradient accumulation on the last of the batches.

        Args:
            x: the inputs of this step's batch; with a `whole_loss` the whole batch.
            y: its targets; left out with a `whole_loss`.
            loss: what the training got on this very batch, if ``.grad`` holds the gradient of it
                and nothing else: saves the scope a pass where only probes of the ray are due. The
                first time it is checked against a gradient of the scope's own.

        Returns:
            Whether the step was measured.
        """
        if self._closed:
            raise StateError("the scope is closed; make a new one to measure on.")
        step, self._step = self._step, self._step + 1
        if not is_measuring_process():
            return False
        due = self._schedule.due(step)
        if due or self._observer.pending is not None:
            with self._schedule.measuring():
                self._observer.look(step, due, x, y, loss)
        return due

    @property
    def results(self) -> xr.Dataset:
        """All that was measured, over ``step`` and, by variable, layer, distance and others.

        The last row may lack what only the next step will show; it is NaN until then.
        """
        return self.results_since(0)

    def results_since(self, step: int) -> xr.Dataset:
        """What was measured at a step and after it; the cost is that of these rows alone.

        Args:
            step: the first one wanted.

        Returns:
            As `results`.
        """
        rows = self._table.rows
        wanted = rows[bisect_left(rows, step, key=lambda row: row.step) :]
        pending = self._observer.pending
        if pending is not None and pending.row.step >= step:
            wanted = [*wanted, pending.row]
        return self._table.dataset(wanted).assign_coords(seed=self._subject.seed)

    @property
    def cost(self) -> ScopeCost:
        """Estimated passes of one measured step; print it for the words."""
        every = self._schedule.every if self._schedule.steps is None else None
        layers = len(self._table.layer_names or weight_layers(self._subject.model))
        return scope_cost(self._probes, layers, len(self._observer.distances), every)

    @property
    def every(self) -> int:
        """Steps from one measurement to the next; with a budget, as last adapted."""
        return self._schedule.every

    @property
    def overhead(self) -> float:
        """Time spent on measuring so far over that of the training without it."""
        return self._schedule.overhead

    @property
    def key(self) -> str | None:
        """The key of the record in the store."""
        return self._log.key

    def plot(self) -> Figure:
        """Draw what was measured, one panel for each quantity.

        Returns:
            The figure with its panels; plots of one panel return its Axes, and ``.figure`` is the
            figure of either.
        """
        from normscope.plots.scope import scope_figure

        return scope_figure(self.results)

    def report(self, path: str | os.PathLike[str], title: str | None = None) -> Path:
        """Write what was measured so far as one HTML file: figure, tables and the numbers.

        Args:
            path: of the file.
            title: of the page; None: "What the scope saw".

        Returns:
            The path.
        """
        from normscope.report.datasets import write_scope_report

        settings = {**scope_settings(self._subject, self._schedule), **self._labels}
        return write_scope_report(self.results, path, title, settings)

    def close(self) -> None:
        """End the measuring; the results stay. More than once does no harm."""
        if not self._closed:
            self._flush()
            self._log.finish()

    def _flush(self) -> None:
        """Keep the last row, though the step that would complete it does not come."""
        self._closed = True
        self._observer.keep_pending()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if kind is None:
            self.close()
        elif not self._closed:
            self._flush()
            self._log.fail(f"{kind.__name__}: {error}")

    def __repr__(self) -> str:
        names = ", ".join(probe.name for probe in self._probes)
        state = "closed" if self._closed else f"at step {self._step}"
        rows = len(self._table.rows) + (self._observer.pending is not None)
        return f"Scope({type(self._subject.model).__name__}: {names}; {rows} measured, {state})"

    def _repr_html_(self) -> str:
        from normscope.report.datasets import scope_html

        return scope_html(self.results, repr(self))
