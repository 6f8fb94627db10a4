"""The scope: probes attached to a training loop, which they do not change."""

from __future__ import annotations

import math
import os
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import xarray as xr

from normscope.errors import InputError, StateError
from normscope.interrupts import interrupt_safe
from normscope.plots.edge_of_stability import stability_headline
from normscope.probes.context import ParameterBuffers, StepContext
from normscope.probes.execution import weight_layers
from normscope.probes.observed import is_measuring_process, observe
from normscope.probes.probe import Probe, ProbeChoice, ScopeCost, choose_probes, scope_cost
from normscope.probes.ray import DISTANCES, check_distances
from normscope.probes.record import Row, ScopeRecord
from normscope.probes.schedule import Schedule
from normscope.problem.modes import EVAL_MODE_MESSAGE, is_in_eval_mode
from normscope.problem.wrappers import is_sharded
from normscope.text import wrap
from normscope.validation import as_seed
from normscope.warn import warn

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from normscope.problem.loss import Loss, WholeLoss
    from normscope.results import Store


class Scope:
    """Probes on a running training, which is bit-identical with and without them.

    Call ``scope.step(x, y)`` once for each update, before ``optimizer.step()``. The scope changes
    neither the model, its gradients, the optimizer nor RNG states, also after an exception or
    Ctrl-C inside a probe. It computes the gradient on (x, y) itself and does not read ``.grad``
    unless ``loss=`` is given: with gradient accumulation, loss scaling or clipping ``.grad`` is
    something else.

    The modules keep their ``training`` flags, unless ``mode`` sets them. Inside autocast the passes
    are autocast too, except the products with curvature matrices. Models inside torch.compile and
    DistributedDataParallel are unwrapped. Of several processes the one of rank 0 measures, on its
    own batch and without waiting for the others. If the model is sharded (FSDP, DTensor), all
    processes must call ``step``: they gather the parameters at the steps that are measured.

    Args:
        model: any module whose parameters are on one device.
        loss: as `normscope.Problem` takes it: ``loss(output, target)``, the mean over samples, a
            registered name, a `whole_loss`, or None for the loss that the model itself returns.
        optimizer: the one that trains the model. It provides the learning rate of each parameter
            group and the update. It is read, never stepped.
        probes: "all", "economy", "standard", "full", or names and configured probes.
        every: steps from one measurement to the next; the first step is measured.
        steps: the steps to measure at, in place of ``every``.
        budget: the share of the training time that measuring may take, such as 0.1, in place of
            ``every``. It follows the clock, so two runs may measure at different steps.
        store: keeps every measured step as soon as it is complete.
        learning_rate: in place of the optimizer's; required by some probes without an optimizer.
        seed: of sampled units and of dropout and noise in the passes of the scope.
        distances: of the points on the gradient's ray, in multiples of the learning rate.
        name: the experiment's name in the store.
        labels: parameters of the record in the store, which identify this training.
        mode: "as_is": each module by its own ``training`` flag, as in the training; or "train",
            "frozen" (batch statistics as constants) or "eval" for all passes. With "as_is" a model
            in eval mode at the first measured step gets a warning.

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

    @interrupt_safe
    def __init__(
        self,
        model: nn.Module,
        loss: Loss | WholeLoss | str | None,
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
        mode: str = "as_is",
    ) -> None:
        seed = as_seed(seed)
        self._observe = partial(observe, model, loss, optimizer, learning_rate, seed, mode)
        self._observed = self._observe()
        self._is_sharded = is_sharded(model)
        if self._is_sharded and budget is not None:
            raise InputError(
                "all processes gather a sharded model at the same steps, which a budget of time "
                "does not fix; use every= or steps=."
            )
        self._distances = check_distances(DISTANCES if distances is None else distances)
        self._probes = [probe.fresh(seed) for probe in choose_probes(probes)]
        self._observed.check_probes(self._probes)
        self._schedule = Schedule(every, steps, budget)
        self._labels = dict(labels or {})
        self._record = ScopeRecord(self._probes, type(self._observed.model).__name__)
        if store is not None and is_measuring_process():
            self._record.open_store(store, name, self._labels, seed)
        self._buffers = ParameterBuffers()
        self._pending: tuple[Row, Sequence[Probe]] | None = None  # completed by the next step
        self._trusts_loss = False  # .grad was compared with the gradient of the scope
        self._has_warned = False
        self._has_checked_flags = mode != "as_is"
        self._step = 0
        self._was_due = False
        self._closed = False

    def step(self, x: Any, y: Any = None, loss: float | Tensor | None = None) -> bool:
        """Measure this training step if it is due.

        Call it once for each update, after the gradient and before the optimizer's step; with
        gradient accumulation on the last of the batches.

        Args:
            x: the inputs of this step's batch; or the whole batch, such as a dictionary of the
                model's arguments with labels, or a graph.
            y: its targets; left out if ``x`` is the whole batch.
            loss: the training loss on this batch, if ``.grad`` holds exactly its gradient: saves
                a pass where only probes of the ray are due. The first time, it is compared with
                the scope's own gradient.

        Returns:
            Whether the step was measured.
        """
        if self._closed:
            raise StateError("the scope is closed; make a new one to measure on.")
        step, self._step = self._step, self._step + 1
        if not (self._is_sharded or is_measuring_process()):
            return False
        due, was_due = self._schedule.due(step), self._was_due
        self._was_due = due
        if self._is_sharded and (due or was_due):  # the next step may complete a measured one
            self._observed = self._observe()
        if not is_measuring_process():
            return False
        if due or self._pending is not None:
            with self._schedule.measuring():
                try:
                    self._measure_step(step, due, x, y, loss)
                except BaseException:
                    self._keep_pending()  # no later step completes it
                    raise
        return due

    @interrupt_safe  # here, not at `step`: most steps measure nothing
    def _measure_step(
        self, step: int, due: bool, x: Any, y: Any, loss: float | Tensor | None
    ) -> None:
        """Complete the row of the step before, and start a row if this step is due."""
        active = [probe for probe in self._probes if due and probe.due(step)]
        row, waiting = self._pending or (None, ())
        context = StepContext(
            self._observed,
            self._observed.problem(x, y),
            step,
            self._distances,
            self._buffers,
            self._record.layer_names,
            ray_gradients=any(probe.ray == "gradients" for probe in active),
        )
        self._run_shared_pass(context, active, waiting, loss)
        if row is not None:
            for probe in waiting:
                row.values |= probe.measure_next(context)
            self._keep_pending()
        if due:
            self._check_flags(context)
            self._measure_probes(context, active)

    def _check_flags(self, context: StepContext) -> None:
        """Warn once if the model is in eval mode, and train mode gives another loss."""
        if self._has_checked_flags:
            return
        self._has_checked_flags = True
        if is_in_eval_mode(self._observed.model) and context.batch_loss.differs_in("train"):
            warn(EVAL_MODE_MESSAGE)

    def _run_shared_pass(
        self,
        context: StepContext,
        active: Sequence[Probe],
        waiting: Sequence[Probe],
        loss: float | Tensor | None,
    ) -> None:
        """Get loss and gradient at the parameters, from a pass or from the training."""
        probes = [*active, *(probe for probe in waiting if probe not in active)]
        if loss is not None and self._trusts_loss and not any(each.needs_pass for each in probes):
            context.use_training_gradient(loss)
            return
        context.run_pass(probes, any(probe.needs_gradient for probe in active))
        if loss is not None and not self._trusts_loss and context.gradient:
            context.check_training_gradient()
            self._trusts_loss = True

    def _measure_probes(self, context: StepContext, active: Sequence[Probe]) -> None:
        if not (math.isfinite(context.loss) or self._has_warned):
            self._has_warned = True
            warn(
                f"the loss of step {context.step} is not finite ({context.loss}), nor is what "
                "follows from it; look at the data, the weights and the learning rate."
            )
        row = Row(context.step, {"loss": context.loss, "learning_rate": context.learning_rate})
        for probe in active:
            row.values |= probe.measure(context)
            probe.mark_measured(context.step)
        self._record.set_labels(context)
        waiting = [probe for probe in active if probe.needs_next]
        if waiting:
            self._pending = row, waiting
        else:
            self._record.add(row)

    def _keep_pending(self) -> None:
        """Record the pending row, complete or not."""
        if self._pending is not None:
            self._record.add(self._pending[0])
            self._pending = None

    @property
    def results(self) -> xr.Dataset:
        """All measurements, over ``step`` and, by variable, layer, distance and others.

        The last row may lack what only the next step completes; it is NaN until then.
        """
        return self.results_since(0)

    def results_since(self, step: int) -> xr.Dataset:
        """Return the measurements from a step on; the cost is that of these rows alone.

        Args:
            step: the first one wanted.

        Returns:
            As `results`.
        """
        rows = self._record.rows
        wanted = rows[bisect_left(rows, step, key=lambda row: row.step) :]
        if self._pending is not None and self._pending[0].step >= step:
            wanted = [*wanted, self._pending[0]]
        return self._record.dataset(wanted).assign_coords(seed=self._observed.seed)

    @property
    def cost(self) -> ScopeCost:
        """Estimated passes of one measured step; print it for details."""
        every = self._schedule.every if self._schedule.steps is None else None
        layers = len(self._record.layer_names or weight_layers(self._observed.model))
        return scope_cost(self._probes, layers, len(self._distances), every)

    @property
    def every(self) -> int:
        """Steps from one measurement to the next; with a budget, the present estimate."""
        return self._schedule.every

    @property
    def overhead(self) -> float:
        """Time spent on measuring so far, relative to the training without it."""
        return self._schedule.overhead

    @property
    def key(self) -> str | None:
        """The key of the record in the store."""
        return self._record.key

    def state_dict(self) -> dict[str, Any]:
        """Return the measurements so far and what later ones depend on.

        Save it with the model's state to resume the measurements with the training. A callback of
        `normscope.fit` that has methods of the same names gets it into the checkpoint. It holds
        tensors and plain types only.

        Returns:
            What `load_state_dict` takes.
        """
        pending = None
        if self._pending is not None:
            row, waiting = self._pending
            pending = {"row": row.state_dict(), "probes": [self._probes.index(p) for p in waiting]}
        return {
            "names": [probe.name for probe in self._probes],
            "probes": [probe.state_dict() for probe in self._probes],
            "record": self._record.state_dict(),
            "pending": pending,
            "step": self._step,
            "was_due": self._was_due,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the measurements of an interrupted training.

        Args:
            state: what `state_dict` returned, of a scope with the same probes. A budget of time
                counts from now on.

        Raises:
            StateError: if this scope has measured already, or has other probes.
        """
        names = [probe.name for probe in self._probes]
        if self._step or state["names"] != names:
            raise StateError(
                f"the state is of a scope with the probes {', '.join(state['names'])}; load it "
                f"before the first step of a scope with the same ones (this one: "
                f"{', '.join(names)}; {self._step} steps)."
            )
        for probe, each in zip(self._probes, state["probes"], strict=True):
            probe.load_state_dict(each)
        self._record.load_state_dict(state["record"])
        if state["pending"] is not None:
            waiting = [self._probes[index] for index in state["pending"]["probes"]]
            self._pending = Row.of_state(state["pending"]["row"]), waiting
        self._step, self._was_due = state["step"], state["was_due"]

    def plot(self) -> Figure:
        """Draw the results, one panel for each quantity, those of custom probes included.

        Returns:
            The figure with its panels; plots of one panel return its Axes, and ``.figure`` is the
            figure of either.
        """
        from normscope.plots.scope import scope_figure

        return scope_figure(self.results)

    def report(self, path: str | os.PathLike[str], title: str | None = None) -> Path:
        """Write the results so far as one HTML file: figure, tables and the numbers.

        Args:
            path: of the file.
            title: of the page; None: "What the scope measured".

        Returns:
            The path.
        """
        from normscope.report.datasets import write_scope_report

        return write_scope_report(self.results, path, title, self._settings())

    def _settings(self) -> dict[str, Any]:
        return {**self._observed.settings(), **self._schedule.settings(), **self._labels}

    def close(self) -> None:
        """Stop measuring; the results stay. May be called more than once."""
        self.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if self._closed:
            return
        self._closed = True
        self._keep_pending()
        if kind is None:
            self._record.finish()
        else:
            self._record.fail(f"{kind.__name__}: {error}")

    def __repr__(self) -> str:
        names = ", ".join(probe.name for probe in self._probes)
        state = "closed" if self._closed else f"at step {self._step}"
        rows = len(self._record.rows) + (self._pending is not None)
        return f"Scope({type(self._observed.model).__name__}: {names}; {rows} measured, {state})"

    def __str__(self) -> str:
        """Return what is measured and, with the probe ``stability``, the distance to the edge."""
        headline = stability_headline(self.results)
        return wrap(f"{headline}\n{self!r}" if headline else repr(self))

    def _repr_html_(self) -> str:
        from normscope.report.datasets import scope_html

        return scope_html(self.results, str(self))
