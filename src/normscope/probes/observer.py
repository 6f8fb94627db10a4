"""One look at a step of a training: which probes are due, what they share, where their row goes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from normscope.errors import NormscopeWarning
from normscope.probes.moment import Moment, Room
from normscope.probes.table import Row, Table

if TYPE_CHECKING:
    from torch import Tensor

    from normscope.probes.logbook import Logbook
    from normscope.probes.probe import Probe
    from normscope.probes.subject import Subject

__all__ = ["Observer", "Pending"]


@dataclass(frozen=True)
class Pending:
    """A row that only the next step completes.

    Args:
        row: of the step before.
        probes: that wait for the next one.
    """

    row: Row
    probes: Sequence[Probe]


class Observer:
    """Takes the measurements of a scope and hands its rows to the logbook.

    Args:
        subject: the model with its loss and optimizer.
        probes: what to measure.
        distances: of the points on the gradient's ray.
        table: knows the layers and the labels.
        log: takes the rows.
    """

    def __init__(
        self,
        subject: Subject,
        probes: Sequence[Probe],
        distances: Sequence[float],
        table: Table,
        log: Logbook,
    ) -> None:
        self.distances = distances
        self.pending: Pending | None = None
        self._subject = subject
        self._probes = probes
        self._table = table
        self._log = log
        self._room = Room()
        self._trusts = False  # that ``.grad`` is what the user says
        self._has_warned = False

    def look(self, step: int, due: bool, x: Any, y: Any, loss: float | Tensor | None) -> None:
        """Complete the row of the step before, and if this one is due begin its own.

        Args:
            step: its number.
            due: whether it is to be measured.
            x: its inputs.
            y: its targets.
            loss: of the training, if ``.grad`` holds its gradient.
        """
        try:
            self._look(step, due, x, y, loss)
        except BaseException:
            self.keep_pending()  # nothing after this step completes the row before it
            raise

    def _look(self, step: int, due: bool, x: Any, y: Any, loss: float | Tensor | None) -> None:
        problem = self._subject.problem(x, y)
        moment = Moment(self._subject, problem, step, self.distances, self._room)
        moment.layer_names = self._table.layer_names
        active = [probe for probe in self._probes if due and probe.due(step)]
        waiting = [] if self.pending is None else self.pending.probes
        moment.ray_gradients = any(probe.ray == "gradients" for probe in active)
        self._begin(moment, active, waiting, loss)
        if self.pending is not None:
            for probe in waiting:
                self.pending.row.values |= probe.complete(moment)
            self.keep_pending()
        if due:
            self._measure(moment, active)

    def _begin(
        self,
        moment: Moment,
        active: Sequence[Probe],
        waiting: Sequence[Probe],
        loss: float | Tensor | None,
    ) -> None:
        """The loss and the gradient at the parameters, of the scope's own or the training's."""
        watching = [*active, *(probe for probe in waiting if probe not in active)]
        if loss is not None and self._trusts and not any(probe.needs_pass for probe in watching):
            moment.take(loss)
            return
        moment.look(watching, any(probe.needs_gradient for probe in active))
        if loss is not None and not self._trusts and moment.gradient:
            moment.refuse_other_gradient()
            self._trusts = True

    def _measure(self, moment: Moment, active: Sequence[Probe]) -> None:
        if not (math.isfinite(moment.loss) or self._has_warned):
            self._has_warned = True
            warnings.warn(
                f"the loss of step {moment.step} is not finite ({moment.loss}), nor is what "
                "follows from it; look at the data, the weights and the learning rate.",
                NormscopeWarning,
                stacklevel=5,  # where the user calls Scope.step
            )
        row = Row(moment.step, {"loss": moment.loss, "learning_rate": moment.learning_rate})
        for probe in active:
            row.values |= probe.measure(moment)
            probe.measured(moment.step)
        self._table.label(moment, self._probes)
        waiting = [probe for probe in active if probe.needs_next]
        if waiting:
            self.pending = Pending(row, waiting)
        else:
            self._log.add(row)

    def keep_pending(self) -> None:
        """Keep the row that waits, complete or not."""
        if self.pending is not None:
            self._log.add(self.pending.row)
            self.pending = None
