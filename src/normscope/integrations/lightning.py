"""The scope as a callback of a Lightning trainer."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from normscope.errors import StateError
from normscope.probes import Scope
from normscope.probes.presets import chosen_probes
from normscope.probes.ray import checked_distances
from normscope.probes.schedule import Schedule
from normscope.registry import unknown_name

try:
    from lightning.pytorch import Callback
except ImportError as error:
    raise StateError(
        "normscope.integrations.lightning needs the package lightning; install it by "
        "pip install 'normscope[lightning]'."
    ) from error

if TYPE_CHECKING:
    import xarray as xr
    from lightning.pytorch import LightningModule, Trainer
    from matplotlib.figure import Figure
    from torch.optim import Optimizer

    from normscope.curvature.problem import WholeLoss
    from normscope.losses import Loss

__all__ = ["ScopeCallback"]


class ScopeCallback(Callback):
    """Measures a training by Lightning; the training ends in the same bits as without it.

    A step of the scope is an update of the optimizer: with gradient accumulation the last of its
    batches is looked at. The passes run in the trainer's precision. The scope is opened when the
    training starts and closed when it ends; after an exception its record in a store says so.

    Args:
        loss: what the training descends, as `Scope` takes it: ``loss(output, target)`` for
            batches (x, y), where the module is called as ``module(x)``, or a `whole_loss`. The
            module's ``training_step`` is not called: it logs.
        **options: all other arguments of `Scope`, such as ``probes`` and ``every``. The optimizer
            is the trainer's.

    Raises:
        InputError: if an option is unknown, or its value cannot be used.

    Examples:
        >>> callback = ScopeCallback("cross_entropy", probes="economy", every=100)
        >>> # Trainer(callbacks=[callback]).fit(module, data); callback.results
    """

    def __init__(self, loss: Loss | WholeLoss | str, **options: Any) -> None:
        super().__init__()
        _refuse_wrong(options)
        self._loss = loss
        self._options = options
        self._scope: Scope | None = None
        self._batch: Any = None

    @property
    def scope(self) -> Scope:
        """The scope, once a training has started."""
        if self._scope is None:
            raise StateError("there is no scope before the training starts; call Trainer.fit.")
        return self._scope

    @property
    def results(self) -> xr.Dataset:
        """All that was measured."""
        return self.scope.results

    def plot(self) -> Figure:
        """Draw what was measured."""
        return self.scope.plot()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach the probes to the module and its optimizer."""
        optimizers = trainer.optimizers
        if len(optimizers) != 1:
            raise StateError(
                f"the callback watches a training with one optimizer, this one has "
                f"{len(optimizers)}; call Scope.step in the module itself."
            )
        self._scope = Scope(pl_module, self._loss, optimizers[0], **self._options)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Remember the batch."""
        self._batch = batch

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Look at the step, between its gradient and its update."""
        batch = self._batch
        with trainer.precision_plugin.forward_context():
            if isinstance(batch, tuple | list) and len(batch) == 2 and not self._is_whole:
                self.scope.step(*batch)
            else:
                self.scope.step(batch)

    @property
    def _is_whole(self) -> bool:
        from normscope.curvature.problem import WholeLoss

        return isinstance(self._loss, WholeLoss)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Close the scope; its results stay."""
        self._batch = None
        self.scope.close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Close the scope after an exception, its record in a store failed."""
        self._batch = None
        if self._scope is not None:
            self._scope.__exit__(type(exception), exception, None)


def _refuse_wrong(options: Mapping[str, Any]) -> None:
    """Refuse now what the scope would refuse when the training starts."""
    given = {"model", "loss", "optimizer"}  # by the callback itself
    known = [name for name in inspect.signature(Scope).parameters if name not in given]
    for name in options:
        if name not in known:
            raise unknown_name("option of ScopeCallback", name, known)
    chosen_probes(options.get("probes", "all"))
    Schedule(**{name: options[name] for name in _WHEN if name in options})
    if options.get("distances") is not None:
        checked_distances(options["distances"])


_WHEN = ("every", "steps", "budget")
