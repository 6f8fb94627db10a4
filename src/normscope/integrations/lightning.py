"""The scope and the learning-rate advice for a Lightning trainer."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sized
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from torch.utils.data import DataLoader

from normscope.errors import InputError, StateError
from normscope.integrations.logged_scope import ScopeCallbackBase
from normscope.integrations.logger import RowLogger
from normscope.learning_rate import Advice, max_learning_rate
from normscope.problem.loss import WholeLoss, whole_loss

try:
    from lightning.pytorch import Callback, LightningDataModule, LightningModule
    from lightning.pytorch.loggers.logger import DummyLogger
    from lightning.pytorch.utilities import rank_zero_info

    from normscope.integrations.lightning_training import TrainingStep, read_optimizer
except ImportError as error:
    raise StateError(
        "normscope.integrations.lightning needs the package lightning; install it by "
        "pip install 'normscope[lightning]'."
    ) from error

if TYPE_CHECKING:
    from lightning.pytorch import Trainer
    from torch.optim import Optimizer

    from normscope.problem.loss import Loss
    from normscope.problem.problem import Data

_LOGGED = ("curvature_bound", "limit", "recommended")  # fields of the advice


class ScopeCallback(ScopeCallbackBase, Callback):
    """Measures a Lightning training, which is bit-identical to one without the callback.

    A step of the scope is an update of the optimizer: with gradient accumulation the last of its
    batches is measured. The passes run in the trainer's precision. The scope is opened when the
    training starts and closed when it ends; after an exception its record in a store is failed.

    Args:
        loss: the training loss, as `Scope` takes it: ``loss(output, target)`` for batches (x, y),
            where the module is called as ``module(x)``, or a `whole_loss`. The module's
            ``training_step`` is not called, because it logs.
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
        self._open_scope(pl_module, _only_optimizer(trainer), logger, trainer.global_step)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Keep the batch."""
        self._batch = batch

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Measure the step, between its gradient and its update."""
        with trainer.precision_plugin.forward_context():
            self._measure(self._batch)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Close the scope; its results stay."""
        self._batch = None
        self._close_scope()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Close the scope after an exception and mark its record in a store as failed."""
        self._batch = None
        self._close_scope(exception)


class _TrainerLogger(RowLogger):
    """All loggers of a trainer as one."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        self._trainer = trainer

    def log_row(self, step: int, values: dict[str, Any]) -> None:
        """Log the numbers of one step."""
        for logger in self._trainer.loggers:
            logger.log_metrics(values, step)


class LearningRateCallback(Callback):
    """Calls `max_learning_rate` before a training starts, prints the advice and logs it.

    The training is bit-identical to one without the callback, unless the callback sets the rate.
    The advice is for the trainer's optimizer, with its state if the training resumes from a
    checkpoint, and for the trainer's gradient clipping and accumulation, in the parameters' own
    precision. The trainer's data is read in this process, without workers.

    Args:
        loss: the training loss, as `ScopeCallback` takes it.
        set_rate: whether to set the optimizer to the recommended rate.
        data: batches to use; None: the trainer's own.
        verify: whether to verify the limit by short runs.
        **options: other arguments of `max_learning_rate`, such as ``seed``; ``clip_norm`` and
            ``accumulate`` replace those of the trainer.

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
        self._sets_rate = set_rate
        self._data = data
        self._options = {"verify": verify, **options}
        self._advice: Advice | None = None

    @property
    def advice(self) -> Advice:
        """The advice, once a training has started."""
        if self._advice is None:
            raise StateError("there is no advice before the training starts; call Trainer.fit.")
        return self._advice

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compute, print and log the advice, and set the rate if asked to."""
        optimizer = _only_optimizer(trainer)
        self._check_trainer(trainer)
        data = _without_workers(trainer.train_dataloader) if self._data is None else self._data
        given = {**_around_step(trainer, self._options), **self._options}
        self._advice = max_learning_rate(pl_module, self._loss, data, optimizer=optimizer, **given)
        rank_zero_info(str(self._advice))
        found = {name: getattr(self._advice, name) for name in _LOGGED}
        values = {f"learning_rate/{name}": each for name, each in found.items() if each is not None}
        for logger in trainer.loggers:
            logger.log_metrics(values, trainer.global_step)
        if self._sets_rate:
            for group, rate in zip(optimizer.param_groups, self._advice.rates(), strict=True):
                group["lr"] = rate

    def _check_trainer(self, trainer: Trainer) -> None:
        if trainer.world_size > 1:
            raise StateError(
                f"the advice is asked for in one process, this training has {trainer.world_size}; "
                "call normscope.max_learning_rate before it."
            )
        if self._sets_rate and trainer.lr_scheduler_configs:
            raise StateError(
                "set_rate needs a training without a scheduler, which has fixed its rates "
                "already; make the optimizer with the advice's rate, or leave set_rate out."
            )


def _only_optimizer(trainer: Trainer) -> Optimizer:
    """Return the optimizer of a trainer; raise if there is not exactly one."""
    optimizers = trainer.optimizers
    if len(optimizers) != 1:
        raise StateError(
            f"the callback watches a training with one optimizer, this one has "
            f"{len(optimizers)}; call Scope.step in the module itself."
        )
    return optimizers[0]


def _without_workers(loader: Any) -> DataLoader[Any]:
    """Return a copy of the loader without workers; reading it does not change the loader."""
    if not isinstance(loader, DataLoader):
        raise InputError(
            f"the trainer's data is a {type(loader).__name__}, not one DataLoader; give one by "
            "data=."
        )
    twin = copy.copy(loader)
    # Bypass __setattr__, which rejects changes to an initialized loader.
    alone = {"num_workers": 0, "prefetch_factor": None, "timeout": 0}
    twin.__dict__.update(alone, persistent_workers=False, _iterator=None)
    return twin


# methods of a module that change the step in ways that short runs do not know
_STEP_METHODS = ("optimizer_step", "backward", "configure_gradient_clipping", "lr_scheduler_step")


def find_learning_rate(
    trainer: Trainer, module: LightningModule, data: Any = None, **options: Any
) -> Advice:
    """Return the learning-rate advice for a training that Lightning is about to run.

    The loss is that of ``training_step``, the optimizer and the schedule are those of
    ``configure_optimizers``, and the trainer's gradient clipping and accumulation are used. What
    ``training_step`` logs is dropped. Module and trainer are left unchanged. A scheduler that
    follows a metric does not act within short runs and is left out.

    Args:
        trainer: before or after a training.
        module: its training step must return the loss.
        data: a DataLoader, a list of batches or a LightningDataModule; None: the trainer's loader
            after a training, else the module's own.
        **options: other arguments of `max_learning_rate`, which replace what is read: ``loss``,
            ``optimizer``, ``scheduler``, ``clip_norm``, ``accumulate``, ``verify``, ``effort``.

    Returns:
        The advice; its rates are those of the optimizer before the schedule, or ``max_lr`` for
        OneCycleLR and CyclicLR.

    Raises:
        StateError: if the module optimizes manually, has several optimizers or changes the step by
            a method of its own, or if the trainer runs in several processes or clips by value.
        InputError: if there is no data, or more than one loader.

    Examples:
        >>> # advice = find_learning_rate(trainer, module, loader)
        >>> # module.lr = advice.recommended; trainer.fit(module, loader)
    """
    _refuse_unknown_steps(trainer, module)
    with _attached(trainer, module) as silent:
        source = _prepare_data(trainer, module, data)
        has_loader = isinstance(source, LightningDataModule | LightningModule)
        loader = source.train_dataloader() if has_loader else source
        if not isinstance(loader, list) or any(isinstance(each, DataLoader) for each in loader):
            loader = _without_workers(loader)
        silent.loader = loader
        given = {
            "loss": whole_loss(TrainingStep(trainer, source)),
            **_around_step(trainer, options),
            **(read_optimizer(trainer, module, loader) if "optimizer" not in options else {}),
            **options,
        }
        return max_learning_rate(module, data=loader, **given)


def _around_step(trainer: Trainer, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the trainer's clipping and accumulation, as arguments of `max_learning_rate`."""
    if trainer.gradient_clip_algorithm == "value" and "clip_norm" not in options:
        raise StateError(
            "the trainer clips gradients by value, short runs by norm; give clip_norm= (None for "
            "no clipping), or clip by norm."
        )
    return {
        "clip_norm": trainer.gradient_clip_val or None,
        "accumulate": trainer.accumulate_grad_batches,
    }


def _refuse_unknown_steps(trainer: Trainer, module: LightningModule) -> None:
    if not module.automatic_optimization:
        raise StateError(
            "the module optimizes manually, so that its step is not known; call "
            "normscope.max_learning_rate with a whole_loss and an optimizer."
        )
    changed = [name for name in _STEP_METHODS if _overrides(module, name)]
    if changed:
        raise StateError(
            f"the module overrides {changed[0]}, which short runs do not call; call "
            "normscope.max_learning_rate with a whole_loss and an optimizer."
        )
    if trainer.world_size > 1:
        raise StateError(
            f"the advice is asked for in one process, this trainer has {trainer.world_size}; use "
            "a Trainer with devices=1."
        )


def _overrides(module: LightningModule, name: str) -> bool:
    return getattr(type(module), name) is not getattr(LightningModule, name)


@contextmanager
def _attached(trainer: Trainer, module: LightningModule) -> Iterator[_SilentTrainer]:
    """Let the module see its trainer, without logging; restore it on exit."""
    attached = module._trainer
    silent = dict.fromkeys(("log", "log_dict"), lambda *_, **__: None)
    try:
        seen = _SilentTrainer(trainer)
        module.trainer = cast("Trainer", seen)
        module.__dict__.update(silent)
        yield seen
    finally:
        for name in silent:
            module.__dict__.pop(name, None)
        module.trainer = attached


class _SilentTrainer:
    """A trainer without its loggers; it is not copied with the module's attributes.

    Attributes:
        loader: training data, once it is known.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.loader: Any = None
        self.logger = DummyLogger()
        self.loggers = [self.logger]

    @property
    def estimated_stepping_batches(self) -> int | float:
        """Updates of the whole training; the trainer itself knows its data only within ``fit``."""
        trainer = self._trainer
        steps = math.inf if trainer.max_steps == -1 else trainer.max_steps
        if trainer.max_epochs in (None, -1) or not isinstance(self.loader, Sized):
            return steps
        try:
            batches = len(self.loader)
        except TypeError:  # a loader of an iterable data set
            return steps
        limit = trainer.limit_train_batches
        batches = min(batches, limit) if isinstance(limit, int) else int(batches * limit)
        updates = math.ceil(batches / trainer.accumulate_grad_batches)
        return min(steps, updates * max(trainer.max_epochs, 1))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> _SilentTrainer:
        return self


def _prepare_data(trainer: Trainer, module: LightningModule, data: Any) -> Any:
    """Return what has the training loader, or the loader itself; a data module as a copy."""
    if isinstance(data, LightningDataModule):
        twin = copy.copy(data)  # its setup sets attributes
        twin.prepare_data()
        twin.setup("fit")
        return twin
    if data is not None:
        return data
    if trainer.train_dataloader is not None:
        return trainer.train_dataloader
    if not _overrides(module, "train_dataloader"):
        raise InputError(
            "there is no training data: the module has no train_dataloader; give data= a "
            "DataLoader or a LightningDataModule."
        )
    return module
