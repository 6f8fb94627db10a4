"""The scope as a callback of a Hugging Face Trainer."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from normscope.errors import StateError
from normscope.integrations.needed import needed
from normscope.integrations.scope_holder import ScopeHolder
from normscope.problem.loss import WholeLoss, whole_loss

if TYPE_CHECKING:
    from torch import nn
    from torch.utils.hooks import RemovableHandle

    from normscope.integrations.logger import Logger

__all__ = ["ScopeCallback", "model_loss"]


def _base() -> Any:
    """The class of a Trainer's callbacks; where it is missing, `ScopeCallback` says so."""
    try:
        return importlib.import_module("transformers").TrainerCallback
    except ImportError:
        return object


_TrainerCallback = _base()

# What a Trainer adds for itself; without it the loss is the mean over this batch.
_NOT_OF_THE_BATCH = ("num_items_in_batch",)

# What makes the model's own loss on the inputs it is given another one than the training's.
_UNFIT = {
    "label_smoothing_factor": "label smoothing takes the labels out of the model's hands",
    "torch_compile": "a compiled model does not show its batches",
    "deepspeed": "DeepSpeed spreads the parameters over processes",
    "fsdp": "FSDP spreads the parameters over processes",
}


@whole_loss
def model_loss(model: Any, batch: Mapping[str, Any]) -> Any:
    """The loss that a model returns for a batch with labels: named, or before all else."""
    output = model(**batch)
    found = output.get("loss") if isinstance(output, Mapping) else output[0]
    if found is None:
        raise StateError(
            f"the model returns no loss for its inputs ({', '.join(batch)}); give them labels, or "
            "give the callback loss=whole_loss(lambda model, batch: ...)."
        )
    return found


class ScopeCallback(ScopeHolder, _TrainerCallback):  # type: ignore[misc, valid-type]  # known when it runs
    """Measures a training by a Hugging Face Trainer, which ends in the same bits as without it.

    A Trainer does not hand its batches to callbacks: a hook on the model reads the inputs of its
    forward pass while it trains, and is gone when the training ends. A step of the scope is an
    update of the optimizer: with gradient accumulation the last of its batches is looked at, and
    the loss is the mean over that batch. The callback stays idle in evaluations.

    Trainers know no event for a training that breaks off: call `close` then.

    Args:
        loss: a `whole_loss` of the model and the keyword arguments the Trainer calls it with, as
            a dictionary; the loss that the model itself returns if left out.
        logger: is given every measured number as it is known: see `LoggedScope`.
        **options: all other arguments of `Scope`, such as ``probes`` and ``every``. The optimizer
            is the Trainer's.

    Raises:
        InputError: if an option is unknown, or its value cannot be used.
        StateError: if transformers is not installed.
    """

    def __init__(
        self, loss: WholeLoss = model_loss, logger: Logger | None = None, **options: Any
    ) -> None:
        needed("transformers", "transformers", "normscope.integrations.transformers")
        super().__init__(loss, options, "Trainer.train")
        self._logger = logger
        self._batch: dict[str, Any] | None = None
        self._is_looking = False
        self._hook: RemovableHandle | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **things: Any) -> None:
        """Attach the probes to the model and its optimizer."""
        _refuse_unfit(args)
        self.close()
        model, optimizer = things["model"], things["optimizer"]
        inner = getattr(optimizer, "optimizer", optimizer)  # inside accelerate's
        self._open(model, inner, self._logger, state.global_step)
        self._hook = model.register_forward_pre_hook(self._read, with_kwargs=True)

    def _read(self, model: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Remember the batch of a training pass; the scope's own and evaluations are none."""
        if self._is_looking or not model.training:
            return
        if given:
            raise StateError(
                "the callback reads batches that the model takes by name, got "
                f"{len(given)} without; call Scope.step in the training itself."
            )
        self._batch = {name: each for name, each in named.items() if name not in _NOT_OF_THE_BATCH}

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **things: Any) -> None:
        """Look at the step, between its gradient and its update."""
        if self._batch is None:
            raise StateError(
                "the Trainer has not called its model since the last update, so that there is no "
                "batch to look at; call Scope.step in the training itself."
            )
        self._is_looking = True
        try:
            self._look(self._batch)
        finally:
            self._is_looking = False
            self._batch = None

    def on_train_end(self, args: Any, state: Any, control: Any, **things: Any) -> None:
        """Close the scope; its results stay."""
        self.close()

    def close(self) -> None:
        """End the measuring, also of a training that broke off; more than once does no harm."""
        self._batch = None
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        self._end()


def _refuse_unfit(args: Any) -> None:
    for name, reason in _UNFIT.items():
        if getattr(args, name, None):
            raise StateError(
                f"the callback cannot watch a training with {name}: {reason}; call Scope.step in "
                "a training loop of your own, or leave that out."
            )
    if getattr(args, "n_gpu", 0) > 1:
        raise StateError(
            "the callback watches one device in each process; start the training by torchrun."
        )
