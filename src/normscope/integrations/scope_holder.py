"""What the callbacks of all trainers share: options of a scope, and the scope once it is open."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from normscope.errors import StateError
from normscope.integrations.logged_scope import LoggedScope
from normscope.integrations.logger import Logger
from normscope.probes import Scope
from normscope.probes.presets import chosen_probes
from normscope.probes.ray import checked_distances
from normscope.probes.schedule import Schedule
from normscope.problem.loss import WholeLoss
from normscope.registry import unknown_name

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure
    from torch import nn
    from torch.optim import Optimizer

    from normscope.problem.loss import Loss

__all__ = ["ScopeHolder"]

_WHEN = ("every", "steps", "budget")
_BY_THE_CALLBACK = ("model", "loss", "optimizer")


class ScopeHolder:
    """Opens a scope when a training starts, and closes it when that ends.

    Args:
        loss: as `Scope` takes it.
        options: the other arguments of `Scope`, but for the model and the optimizer.
        start: what starts a training, for an error.
    """

    def __init__(
        self, loss: Loss | WholeLoss | str, options: Mapping[str, Any], start: str
    ) -> None:
        _refuse_wrong(options)
        self._loss = loss
        self._options = options
        self._start = start
        self._scope: Scope | None = None
        self._watching: Scope | LoggedScope | None = None

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
            The figure, as `normscope.Scope.plot` gives it.
        """
        return self.scope.plot()

    def _open(
        self, model: nn.Module, optimizer: Optimizer, logger: Logger | None, first_step: int
    ) -> None:
        self._scope = Scope(model, self._loss, optimizer, **self._options)
        self._watching = self._scope
        if logger is not None:
            self._watching = LoggedScope(self._scope, logger, first_step=first_step)

    def _look(self, batch: Any) -> None:
        """Look at a step on a batch as the training has it."""
        assert self._watching is not None
        pair = isinstance(batch, tuple | list) and len(batch) == 2
        if pair and not isinstance(self._loss, WholeLoss):
            self._watching.step(*batch)
        else:
            self._watching.step(batch)

    def _end(self, error: BaseException | None = None) -> None:
        if self._watching is not None:
            self._watching.__exit__(None if error is None else type(error), error, None)
            self._watching = None


def _refuse_wrong(options: Mapping[str, Any]) -> None:
    """Refuse now what the scope would refuse when the training starts."""
    parameters = inspect.signature(Scope).parameters
    known = [name for name in parameters if name not in _BY_THE_CALLBACK]
    for name in options:
        if name not in known:
            raise unknown_name("option of ScopeCallback", name, known)
    chosen_probes(options.get("probes", "all"))
    Schedule(**{name: options[name] for name in _WHEN if name in options})
    if options.get("distances") is not None:
        checked_distances(options["distances"])
