"""The scope as a callback of a Hugging Face Trainer."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from normscope.errors import StateError
from normscope.integrations.logged_scope import ScopeCallbackBase
from normscope.integrations.logger import require_package
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
