"""The scope and the learning-rate advice for a Hugging Face Trainer."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, IterableDataset, RandomSampler

from normscope.errors import InputError, StateError
from normscope.integrations.logged_scope import ScopeCallbackBase
from normscope.integrations.logger import require_package
from normscope.learning_rate import Advice, max_learning_rate
from normscope.problem.isolation import RandomGenerators
from normscope.problem.loss import WholeLoss, whole_loss

if TYPE_CHECKING:
    from torch import nn
    from torch.utils.hooks import RemovableHandle

    from normscope.integrations.logger import Logger

try:
    _TrainerCallback: Any = importlib.import_module("transformers").TrainerCallback
except ImportError:  # creating a ScopeCallback raises
    _TrainerCallback = object

# Inputs that the Trainer adds; without them the loss is the mean over this batch.
_ADDED_BY_TRAINER = ("num_items_in_batch",)

# Trainer arguments with which the model's loss on its inputs is not the training loss.
_UNSUPPORTED = {
    "label_smoothing_factor": "with label smoothing the model does not compute the loss",
    "torch_compile": "a compiled model does not show its batches",
    "deepspeed": "DeepSpeed spreads the parameters over processes",
    "fsdp": "FSDP spreads the parameters over processes",
}


@whole_loss
def model_loss(model: Any, batch: Mapping[str, Any]) -> Any:
    """Return the loss a model returns for a batch with labels: by name, or the first output."""
    output = model(**batch)
    found = output.get("loss") if isinstance(output, Mapping) else output[0]
    if found is None:
        raise StateError(
            f"the model returns no loss for its inputs ({', '.join(batch)}); give them labels, or "
            "give the callback loss=whole_loss(lambda model, batch: ...)."
        )
    return found


class ScopeCallback(ScopeCallbackBase, _TrainerCallback):  # type: ignore[misc]  # a runtime base
    """Measures a Hugging Face training, which is bit-identical to one without the callback.

    A Trainer does not pass its batches to callbacks, so a hook on the model reads the inputs of
    its forward pass in training; it is removed when the training ends. A step of the scope is an
    update of the optimizer: with gradient accumulation the last of its batches is measured, and
    the loss is the mean over that batch. The callback is idle during evaluation.

    Trainers have no event for a training that raises: call `close` then.

    Args:
        loss: a `whole_loss` of the model and the keyword arguments the Trainer calls it with, as
            a dictionary; by default the loss that the model itself returns.
        logger: receives every measured number as it is known: see `LoggedScope`.
        **options: all other arguments of `Scope`, such as ``probes`` and ``every``. The optimizer
            is the Trainer's.

    Raises:
        InputError: if an option is unknown, or its value cannot be used.
        StateError: if transformers is not installed.
    """

    def __init__(
        self, loss: WholeLoss = model_loss, logger: Logger | None = None, **options: Any
    ) -> None:
        require_package("transformers", "normscope.integrations.transformers")
        super().__init__(loss, options, "Trainer.train")
        self._logger = logger
        self._batch: dict[str, Any] | None = None
        self._is_measuring = False
        self._hook: RemovableHandle | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **things: Any) -> None:
        """Attach the probes to the model and its optimizer."""
        _check_arguments(args)
        self.close()
        model, optimizer = things["model"], things["optimizer"]
        inner = getattr(optimizer, "optimizer", optimizer)  # inside accelerate's
        self._open_scope(model, inner, self._logger, state.global_step)
        self._hook = model.register_forward_pre_hook(self._read, with_kwargs=True)

    def _read(self, model: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Keep the batch of a training pass; ignore the scope's own passes and evaluations."""
        if self._is_measuring or not model.training:
            return
        if given:
            raise StateError(
                "the callback reads batches that the model takes by name, got "
                f"{len(given)} without; call Scope.step in the training itself."
            )
        self._batch = {name: each for name, each in named.items() if name not in _ADDED_BY_TRAINER}

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **things: Any) -> None:
        """Measure the step, between its gradient and its update."""
        if self._batch is None:
            raise StateError(
                "the Trainer has not called its model since the last update, so there is no batch "
                "to measure; call Scope.step in the training itself."
            )
        self._is_measuring = True
        try:
            self._measure(self._batch)
        finally:
            self._is_measuring = False
            self._batch = None

    def on_train_end(self, args: Any, state: Any, control: Any, **things: Any) -> None:
        """Close the scope; its results stay."""
        self.close()

    def close(self) -> None:
        """Stop measuring, also after a training that raised; may be called more than once."""
        self._batch = None
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        self._close_scope()


def _check_arguments(args: Any) -> None:
    for name, reason in _UNSUPPORTED.items():
        if getattr(args, name, None):
            raise StateError(
                f"the callback cannot watch a training with {name}: {reason}; call Scope.step in "
                "your own training loop, or leave that out."
            )
    if getattr(args, "n_gpu", 0) > 1:
        raise StateError(
            "the callback watches one device in each process; start the training by torchrun."
        )


def find_learning_rate(trainer: Any, **options: Any) -> Advice:
    """Return the learning-rate advice for a training that a Trainer is about to run.

    Model, training data, loss (``compute_loss``), optimizer, schedule, clipping and accumulation
    are the Trainer's; Trainer and model are left unchanged. The model is measured in train mode, as
    a Trainer trains it, with each batch's own mean as its loss.

    Args:
        trainer: a Hugging Face Trainer, before or after its training.
        **options: other arguments of `max_learning_rate`, which replace what is read: ``loss``,
            ``data``, ``optimizer``, ``scheduler``, ``clip_norm``, ``accumulate``, ``mode``,
            ``verify``, ``effort``.

    Returns:
        The advice; its rates are those of the optimizer before the schedule, as
        ``TrainingArguments.learning_rate`` is.

    Raises:
        StateError: if the training runs in several processes or on several devices, or if the
            Trainer was given a scheduler of its own.
        InputError: if it has no training data.

    Examples:
        >>> # advice = find_learning_rate(trainer)
        >>> # trainer.args.learning_rate = advice.recommended; trainer.train()
    """
    require_package("transformers", "normscope.integrations.transformers")
    _refuse_several_devices(trainer.args)
    with _unchanged(trainer):
        data = options["data"] if "data" in options else _plain_loader(trainer)
        given = {
            "loss": _training_loss(trainer),
            "mode": "train",
            "clip_norm": trainer.args.max_grad_norm or None,
            "accumulate": trainer.args.gradient_accumulation_steps,
            "optimizer": _own_optimizer(trainer),
            "scheduler": _scheduler_factory(trainer, data, options),
            **options,
            "data": data,
        }
        return max_learning_rate(trainer.model, **given)


def _refuse_several_devices(args: Any) -> None:
    for name in ("deepspeed", "fsdp"):
        if getattr(args, name, None):
            raise StateError(
                f"the advice cannot be computed with {name}: {_UNSUPPORTED[name]}; ask for it "
                "before, with a Trainer without."
            )
    if args.world_size > 1 or args.n_gpu > 1:
        raise StateError(
            f"the advice is asked for in one process on one device, this Trainer has "
            f"{max(args.world_size, args.n_gpu)}; ask for it before, in one process."
        )


@contextmanager
def _unchanged(trainer: Any) -> Iterator[None]:
    """Restore the Trainer's attributes, its accelerator's and random numbers on exit."""
    accelerator = trainer.accelerator
    kept = [(each, dict(vars(each))) for each in (trainer, accelerator)]
    registered = {name: list(each) for name, each in kept[1][1].items() if isinstance(each, list)}
    try:
        with RandomGenerators(trainer.model).preserved():
            yield
    finally:
        for each, attributes in kept:
            vars(each).clear()
            vars(each).update(attributes)
        for name, values in registered.items():
            vars(accelerator)[name][:] = values  # prepared loaders are registered there


def _plain_loader(trainer: Any) -> DataLoader[Any]:
    """Return the Trainer's loader in this process, without workers and without accelerate."""
    if trainer.train_dataset is None:
        raise InputError("the Trainer has no train_dataset; make it with one, or give data=.")
    loader = trainer.get_train_dataloader()
    dataset, collate = loader.dataset, loader.collate_fn
    options: dict[str, Any] = {"collate_fn": lambda features: dict(collate(features))}
    if isinstance(dataset, IterableDataset):
        return DataLoader(dataset, trainer.args.train_batch_size, **options)
    sampler = getattr(loader.batch_sampler, "sampler", None)
    shuffled = isinstance(sampler, RandomSampler)
    order = {"shuffle": True} if shuffled else {"sampler": sampler}
    drop_last = trainer.args.dataloader_drop_last
    size = trainer.args.train_batch_size
    return DataLoader(dataset, size, drop_last=drop_last, **order, **options)


def _training_loss(trainer: Any) -> WholeLoss:
    """Return the loss that the Trainer computes for a batch."""

    def loss(model: Any, batch: Mapping[str, Any]) -> Any:
        with trainer.compute_loss_context_manager():
            return trainer.compute_loss(model, dict(batch))  # it may remove the labels

    return whole_loss(loss)


def _own_optimizer(trainer: Any) -> Any:
    """Return the Trainer's optimizer, or the one that it would create."""
    made = trainer.optimizer if trainer.optimizer is not None else trainer.create_optimizer()
    return getattr(made, "optimizer", made)  # inside accelerate's


def _scheduler_factory(trainer: Any, data: Any, options: Mapping[str, Any]) -> Any:
    """Return a function that makes the Trainer's schedule for another optimizer."""
    if "scheduler" in options:
        return options["scheduler"]
    if trainer.lr_scheduler is not None and not getattr(trainer, "_created_lr_scheduler", False):
        raise StateError(
            "the Trainer was given a scheduler of its own, which belongs to one optimizer; give "
            "scheduler= a function that makes one for an optimizer, or None."
        )
    steps = _training_steps(trainer.args, data)

    def make(optimizer: Any) -> Any:
        trainer.lr_scheduler = None
        return trainer.create_scheduler(steps, optimizer)

    return make


def _training_steps(args: Any, data: Any) -> int:
    """Return the number of updates of the whole training."""
    if args.max_steps > 0:
        return int(args.max_steps)
    updates = -(-len(data) // int(args.gradient_accumulation_steps))
    return math.ceil(updates * float(args.num_train_epochs))
