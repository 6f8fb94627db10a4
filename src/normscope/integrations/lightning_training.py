"""What a Lightning module trains with: its loss, its optimizer and its schedule."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lightning.pytorch import LightningDataModule
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from normscope.errors import StateError
from normscope.problem.isolation import isolated

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer


class TrainingStep:
    """The loss of a module's training step, as a function of the module and a batch.

    Args:
        trainer: for its precision.
        source: of the data; a data module may change batches after they are moved.
    """

    def __init__(self, trainer: Trainer, source: Any) -> None:
        self._trainer = trainer
        self._data = source if isinstance(source, LightningDataModule) else None

    def __call__(self, module: Any, batch: Any) -> Any:
        """Return the loss of a batch.

        Args:
            module: a LightningModule.
            batch: as the loader gives it.

        Raises:
            StateError: if the training step returns none.
        """
        for name in ("on_before_batch_transfer", "on_after_batch_transfer"):
            is_own = self._data is not None and getattr(type(self._data), name) is not getattr(
                LightningDataModule, name
            )
            batch = getattr(self._data if is_own else module, name)(batch, 0)
        known = inspect.signature(module.training_step).parameters.values()
        takes_number = len(known) > 1 or any(each.kind is each.VAR_POSITIONAL for each in known)
        number = (0,) if takes_number else ()  # by position, as Lightning passes it
        with self._trainer.precision_plugin.forward_context():
            found = module.training_step(batch, *number)
        loss = found.get("loss") if isinstance(found, Mapping) else found
        if loss is None:
            raise StateError(
                "training_step returned no loss for a batch; return it, or give loss=."
            )
        return loss


def read_optimizer(trainer: Trainer, module: LightningModule, loader: Any) -> dict[str, Any]:
    """Return optimizer and scheduler factories that call ``configure_optimizers``.

    Args:
        trainer: for its accumulation.
        module: configures them.
        loader: whose length is that of an epoch.

    Returns:
        Arguments of `max_learning_rate`.

    Raises:
        StateError: if there is not one optimizer, or more than one scheduler.
    """
    with isolated(module):
        configs = _configure(module)[1]
    if len(configs) > 1:
        raise StateError(
            f"the module has {len(configs)} schedulers; give scheduler= one that joins them, and "
            "optimizer=."
        )
    found: dict[str, Any] = {"optimizer": lambda _: _configure(module)[0]}
    if configs:
        every = _steps_between(configs[0], loader, trainer.accumulate_grad_batches)
        found["scheduler"] = lambda optimizer: _FollowedSchedule(module, optimizer, every)
    return found


def _configure(module: LightningModule) -> tuple[Optimizer, list[Mapping[str, Any]]]:
    """Return the optimizer that a module configures, and its schedulers that need no metric."""
    try:
        optimizers, schedulers = _split_configuration(module.configure_optimizers())
    except Exception as error:
        raise StateError(
            f"configure_optimizers failed outside a training ({type(error).__name__}: {error}); "
            "give optimizer=, and scheduler= if there is one."
        ) from error
    if len(optimizers) != 1:
        raise StateError(
            f"the advice is for a training with one optimizer, the module has {len(optimizers)}; "
            "call normscope.max_learning_rate for each."
        )
    configs = [each if isinstance(each, Mapping) else {"scheduler": each} for each in schedulers]
    plateau = ReduceLROnPlateau
    return optimizers[0], [each for each in configs if not isinstance(each["scheduler"], plateau)]


def _split_configuration(made: Any) -> tuple[list[Optimizer], list[Any]]:
    """Return the optimizers and schedulers in any form that Lightning accepts."""
    if isinstance(made, Optimizer):
        return [made], []
    if isinstance(made, Mapping):
        scheduler = made.get("lr_scheduler")
        return [made["optimizer"]], [] if scheduler is None else [scheduler]
    if not isinstance(made, Sequence):
        return [], []
    if len(made) == 2 and isinstance(made[0], Sequence):
        return list(made[0]), list(made[1]) if isinstance(made[1], Sequence) else [made[1]]
    parts = [_split_configuration(each) for each in made]
    return [one for each, _ in parts for one in each], [one for _, each in parts for one in each]


def _steps_between(config: Mapping[str, Any], loader: Any, accumulate: int) -> int:
    """Return the number of updates between two steps of a scheduler."""
    frequency = int(config.get("frequency", 1))
    if config.get("interval", "epoch") == "step":
        return frequency
    try:
        return frequency * -(-len(loader) // accumulate)
    except TypeError:  # an epoch of unknown length
        return sys.maxsize


class _FollowedSchedule:
    """A schedule that a module configures for its optimizer, followed by another optimizer.

    Args:
        module: configures both.
        optimizer: follows.
        every: updates between two steps of the schedule.
    """

    def __init__(self, module: LightningModule, optimizer: Optimizer, every: int) -> None:
        self._leader, (config, *_) = _configure(module)
        self._scheduler = config["scheduler"]
        self._optimizer, self._every, self._taken = optimizer, every, 0
        self._copy_options()

    @property
    def max_lrs(self) -> list[float] | None:
        """The largest rates of CyclicLR; None for another scheduler."""
        return getattr(self._scheduler, "max_lrs", None)

    def step(self) -> None:
        """Count an update, and step the schedule if it is due."""
        self._taken += 1
        if self._taken % self._every == 0:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # torch's: the leader takes no step
                self._scheduler.step()
            self._copy_options()

    def _copy_options(self) -> None:
        """Copy learning rates, and what else a scheduler may change, such as momentum."""
        for group, options in zip(self._optimizer.param_groups, self._options(), strict=True):
            group.update(options)

    def _options(self) -> list[dict[str, Any]]:
        groups = self._leader.param_groups
        return [{name: group[name] for name in group if name != "params"} for group in groups]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the schedule."""
        scheduler = self._scheduler.state_dict()
        return {"taken": self._taken, "scheduler": scheduler, "options": self._options()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state_dict` returned.

        Args:
            state: what it returned.
        """
        self._taken = state["taken"]
        self._scheduler.load_state_dict(state["scheduler"])
        for group, options in zip(self._leader.param_groups, state["options"], strict=True):
            group.update(options)
