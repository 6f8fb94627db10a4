"""The scope: probes attached to a training loop, which runs as if they were not there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import xarray as xr

from normscope.errors import StateError
from normscope.probes.cost import ScopeCost, scope_cost
from normscope.probes.execution import weight_layers
from normscope.probes.logbook import Logbook
from normscope.probes.moment import Moment, Room
from normscope.probes.presets import ProbeChoice, chosen_probes
from normscope.probes.probe import Probe
from normscope.probes.ray import DISTANCES, checked_distances
from normscope.probes.schedule import Schedule
from normscope.probes.subject import Subject, is_measuring_process, unwrapped
from normscope.probes.table import Row, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import nn
    from torch.optim import Optimizer

    from normscope.curvature.problem import WholeLoss
    from normscope.losses import Loss
    from normscope.results import Store

__all__ = ["Scope"]


class Scope:
    """Probes on a training under way; the training ends in the same bits with and without it.

    Call ``scope.step(x, y)`` once for each update, before ``optimizer.step()``. Nothing of the
    model, its gradients, the optimizer or the random numbers is changed, also after an exception
    or Ctrl-C inside a probe. The scope takes the gradient on (x, y) itself and never reads
    ``.grad``: with gradient accumulation, loss scaling or clipping that holds something else.

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
        self._distances = checked_distances(DISTANCES if distances is None else distances)
        self._probes = [probe.begin(seed) for probe in chosen_probes(probes)]
        self._subject.refuse_unfit(self._probes)
        self._schedule = Schedule(every, steps, budget)
        self._table = Table(self._probes, type(self._subject.model).__name__)
        measures = is_measuring_process()
        self._log = Logbook(self._table, store if measures else None, name, labels or {}, seed)
        self._room = Room()
        self._step = 0
        self._closed = False
        self._pending: tuple[Row, list[Probe]] | None = None

    def step(self, x: Any, y: Any = None) -> bool:
        """Look at this step of the training, if it is one to be measured.

        To be called once for each update, when the gradient is there and before the optimizer
        takes its step; with gradient accumulation on the last of the batches.

        Args:
            x: the inputs of this step's batch; with a `whole_loss` the whole batch.
            y: its targets; left out with a `whole_loss`.

        Returns:
            Whether the step was measured.
        """
        if self._closed:
            raise StateError("the scope is closed; make a new one to measure on.")
        step, self._step = self._step, self._step + 1
        if not is_measuring_process():
            return False
        due = self._schedule.due(step)
        if due or self._pending is not None:
            with self._schedule.measuring():
                try:
                    self._look(step, due, x, y)
                except BaseException:
                    self._keep_pending()  # nothing after this step completes the row before it
                    raise
        return due

    def _look(self, step: int, due: bool, x: Any, y: Any) -> None:
        """Complete the row of the step before, and begin that of this one."""
        problem = self._subject.problem(x, y)
        moment = Moment(self._subject, problem, step, self._distances, self._room)
        moment.layer_names = self._table.layer_names
        active = [probe for probe in self._probes if due and probe.due(step)]
        waiting = [] if self._pending is None else self._pending[1]
        watching = {id(probe): probe for probe in (*active, *waiting)}.values()
        moment.ray_gradients = any(probe.ray == "gradients" for probe in active)
        moment.look(watching, any(probe.needs_gradient for probe in active))
        if self._pending is not None:
            for probe in waiting:
                self._pending[0].values |= probe.complete(moment)
            self._keep_pending()
        if due:
            self._measure(moment, active)

    def _keep_pending(self) -> None:
        """Keep the row that waits, complete or not."""
        if self._pending is not None:
            self._log.add(self._pending[0])
            self._pending = None

    def _measure(self, moment: Moment, active: Sequence[Probe]) -> None:
        row = Row(moment.step, {"loss": moment.loss, "learning_rate": moment.learning_rate})
        for probe in active:
            row.values |= probe.measure(moment)
            probe.measured(moment.step)
        self._table.label(moment, self._probes)
        waiting = [probe for probe in active if probe.needs_next]
        if waiting:
            self._pending = (row, waiting)
        else:
            self._log.add(row)

    @property
    def results(self) -> xr.Dataset:
        """All that was measured, over ``step`` and, by variable, layer, distance and others.

        The last row may lack what only the next step will show; it is NaN until then.
        """
        pending = [] if self._pending is None else [self._pending[0]]
        dataset = self._table.dataset([*self._table.rows, *pending])
        return dataset.assign_coords(seed=self._subject.seed)

    @property
    def cost(self) -> ScopeCost:
        """Estimated passes of one measured step; print it for the words."""
        every = self._schedule.every if self._schedule.steps is None else None
        layers = len(self._table.layer_names or weight_layers(self._subject.model))
        return scope_cost(self._probes, layers, len(self._distances), every)

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
        """Draw what was measured, one panel for each quantity."""
        from normscope.plots.scope import scope_figure

        return scope_figure(self.results)

    def close(self) -> None:
        """End the measuring; the results stay. More than once does no harm."""
        if not self._closed:
            self._flush()
            self._log.finish()

    def _flush(self) -> None:
        """Keep the last row, though the step that would complete it does not come."""
        self._closed = True
        self._keep_pending()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        elif not self._closed:
            self._flush()
            self._log.fail(f"{kind.__name__}: {error}")

    def __repr__(self) -> str:
        names = ", ".join(probe.name for probe in self._probes)
        state = "closed" if self._closed else f"at step {self._step}"
        rows = len(self._table.rows) + (self._pending is not None)
        return f"Scope({type(self._subject.model).__name__}: {names}; {rows} measured, {state})"
