"""The scope and the learning-rate advice as callbacks of a Lightning trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from normscope.errors import StateError
from normscope.integrations.logger import RowLogger
from normscope.integrations.scope_holder import ScopeHolder

try:
    from lightning.pytorch import Callback
except ImportError as error:
    raise StateError(
        "normscope.integrations.lightning needs the package lightning; install it by "
        "pip install 'normscope[lightning]'."
    ) from error

from normscope.integrations.lightning_advice import LearningRateCallback, only_optimizer

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer
    from torch.optim import Optimizer

    from normscope.problem.loss import Loss, WholeLoss

__all__ = ["LearningRateCallback", "ScopeCallback"]


class ScopeCallback(ScopeHolder, Callback):
    """Measures a training by Lightning; the training ends in the same bits as without it.

    A step of the scope is an update of the optimizer: with gradient accumulation the last of its
    batches is looked at. The passes run in the trainer's precision. The scope is opened when the
    training starts and closed when it ends; after an exception its record in a store says so.

    Args:
        loss: what the training descends, as `Scope` takes it: ``loss(output, target)`` for
            batches (x, y), where the module is called as ``module(x)``, or a `whole_loss`. The
            module's ``training_step`` is not called: it logs.
        log: whether every measured number also goes to the trainer's loggers, as it is known.
        **options: all other arguments of `Scope`, such as ``probes`` and ``every``. The optimizer
            is the trainer's.

    Raises:
        InputError: if an option is unknown, or its value cannot be used.

    Examples:
        >>> callback = ScopeCallback("cross_entropy", probes="economy", every=100)
        >>> # Trainer(callbacks=[callback]).fit(module, data); callback.results
    """

    def __init__(self, loss: Loss | WholeLoss | str, log: bool = False, **options: Any) -> None:
        super().__init__(loss, options, "Trainer.fit")
        self._logs = log
        self._batch: Any = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach the probes to the module and its optimizer."""
        logger = _TrainerLogger(trainer) if self._logs else None
        self._open(pl_module, only_optimizer(trainer), logger, trainer.global_step)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Remember the batch."""
        self._batch = batch

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Look at the step, between its gradient and its update."""
        with trainer.precision_plugin.forward_context():
            self._look(self._batch)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Close the scope; its results stay."""
        self._batch = None
        self._end()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Close the scope after an exception, its record in a store failed."""
        self._batch = None
        self._end(exception)


class _TrainerLogger(RowLogger):
    """All loggers of a trainer as one."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        self._trainer = trainer

    def log_row(self, step: int, values: dict[str, Any]) -> None:
        """Pass on the numbers of one step."""
        for logger in self._trainer.loggers:
            logger.log_metrics(values, step)
