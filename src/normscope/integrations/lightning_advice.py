"""How large a learning rate, told by a Lightning trainer before its first step."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from lightning.pytorch import Callback
from lightning.pytorch.utilities import rank_zero_info
from torch.utils.data import DataLoader

from normscope.errors import InputError, StateError
from normscope.learning_rate import Advice, max_learning_rate

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer
    from torch.optim import Optimizer

    from normscope.problem.loss import Loss, WholeLoss
    from normscope.problem.problem import Data

__all__ = ["LearningRateCallback", "only_optimizer"]

_LOGGED = ("curvature_bound", "limit", "recommended")


class LearningRateCallback(Callback):
    """Asks `max_learning_rate` before a training starts, tells the answer and logs it.

    The training that follows ends in the same bits as without the callback, unless it sets the
    rate. The question is asked of the trainer's optimizer, with its state if the training goes on
    from a checkpoint, in the parameters' own precision. The trainer's data is read in this
    process, without workers.

    Args:
        loss: what the training descends, as `ScopeCallback` takes it.
        set_rate: whether the optimizer then has the recommended rate.
        data: batches to ask on; None: the trainer's own.
        verify: whether short runs on copies find the onset.
        **options: other arguments of `max_learning_rate`, such as ``seed``.

    Examples:
        >>> callback = LearningRateCallback("cross_entropy", verify=False)
        >>> # Trainer(callbacks=[callback]).fit(module, data); print(callback.advice)
    """

    def __init__(
        self,
        loss: Loss | WholeLoss | str,
        set_rate: bool = False,
        data: Data = None,
        verify: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        self._loss = loss
        self._sets = set_rate
        self._data = data
        self._options = {"verify": verify, **options}
        self._advice: Advice | None = None

    @property
    def advice(self) -> Advice:
        """The answer, once a training has started."""
        if self._advice is None:
            raise StateError("there is no advice before the training starts; call Trainer.fit.")
        return self._advice

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Ask, tell, log and perhaps set; before the first batch."""
        optimizer = only_optimizer(trainer)
        self._refuse_unfit(trainer)
        data = _readable(trainer.train_dataloader) if self._data is None else self._data
        self._advice = max_learning_rate(
            pl_module, self._loss, data, optimizer=optimizer, **self._options
        )
        rank_zero_info(str(self._advice))
        values = {f"learning_rate/{name}": getattr(self._advice, name) for name in _LOGGED}
        for logger in trainer.loggers:
            logger.log_metrics(values, trainer.global_step)
        if self._sets:
            for group in optimizer.param_groups:  # which agree, or there were no advice
                group["lr"] = self._advice.recommended

    def _refuse_unfit(self, trainer: Trainer) -> None:
        if trainer.world_size > 1:
            raise StateError(
                f"the advice is asked for in one process, this training has {trainer.world_size}; "
                "call normscope.max_learning_rate before it."
            )
        if self._sets and trainer.lr_scheduler_configs:
            raise StateError(
                "set_rate needs a training without a scheduler, which has fixed its rates "
                "already; make the optimizer with the advice's rate, or leave set_rate out."
            )


def only_optimizer(trainer: Trainer) -> Optimizer:
    """The optimizer of a trainer.

    Args:
        trainer: that has set it up.

    Returns:
        The optimizer.

    Raises:
        StateError: if there is not exactly one.
    """
    optimizers = trainer.optimizers
    if len(optimizers) != 1:
        raise StateError(
            f"the callback watches a training with one optimizer, this one has "
            f"{len(optimizers)}; call Scope.step in the module itself."
        )
    return optimizers[0]


def _readable(loader: Any) -> DataLoader[Any]:
    """The loader's twin without workers: reading it leaves no trace in the loader."""
    if not isinstance(loader, DataLoader):
        raise InputError(
            f"the trainer's data is a {type(loader).__name__}, not one DataLoader; give the "
            "callback its own by data=."
        )
    twin = copy.copy(loader)
    # past __setattr__, which refuses changes of a finished loader
    alone = {"num_workers": 0, "prefetch_factor": None, "timeout": 0}
    twin.__dict__.update(alone, persistent_workers=False, _iterator=None)
    return twin
