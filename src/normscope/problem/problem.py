"""`Problem`: a model, a loss and data, validated once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn

from normscope.errors import ArgumentTypeError, InputError, ShapeError, StateError
from normscope.problem.batch import Batch, check_filled, check_pair, move_batch
from normscope.problem.diagnose import FitCheck, require_module
from normscope.problem.loss import (
    LOSSES,
    Loss,
    WholeLoss,
    call_loss,
    check_output,
    check_probabilities,
    check_signature,
    cross_entropy,
)

Data: TypeAlias = Any
"""One batch, or an iterable of batches that can be read again."""


@dataclass(frozen=True, eq=False)
class Problem:
    """A model, a loss and data.

    Batches follow the model: they come on its device, their floating-point tensors in the dtype
    of its parameters.

    Args:
        model: any module whose parameters are on one device.
        loss: called as ``loss(output, target)``, the mean over the samples; a name of
            `normscope.problem.LOSSES`; or a `whole_loss`.
        data: one batch ``(inputs, targets)``, a list of batches, or a DataLoader (any iterable
            that can be read again). With a `whole_loss` a batch may also be a tensor, a
            dictionary or a tuple of any length.

    Examples:
        >>> problem = Problem(nn.Identity(), "squared_error", (torch.ones(2, 3), torch.zeros(2, 3)))
        >>> [problem.loss_on(batch).item() for batch in problem.batches()]
        [1.5]
    """

    model: nn.Module
    loss: Loss | WholeLoss | str
    data: Data

    def __post_init__(self) -> None:
        require_module(self.model)
        loss = LOSSES[self.loss] if isinstance(self.loss, str) else self.loss
        if isinstance(loss, type):
            raise ArgumentTypeError(
                f"the loss must be called with (output, target), got the class {loss.__name__}; "
                f"create an instance: {loss.__name__}()."
            )
        if isinstance(loss, WholeLoss):
            check_signature(loss.function, "model", "batch")
        elif callable(loss):
            check_signature(loss, "output", "target")
        else:
            raise ArgumentTypeError(
                "the loss must be a callable (output, target), a registered name or a whole_loss, "
                f"got {type(loss).__name__}."
            )
        object.__setattr__(self, "loss", loss)
        self._check_device()
        self._check_data()

    @property
    def device(self) -> torch.device:
        """The device of the model; the CPU if it has neither parameters nor buffers."""
        return next((tensor.device for tensor in self._tensors()), torch.device("cpu"))

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype of the model's first floating-point tensor; None if it has none."""
        return next((t.dtype for t in self._tensors() if t.is_floating_point()), None)

    @property
    def has_outputs(self) -> bool:
        """Whether the model's output is known: not with a `whole_loss`."""
        return not isinstance(self.loss, WholeLoss)

    @property
    def is_one_batch(self) -> bool:
        """Whether the data is one batch in memory, whose rows may be drawn in any order."""
        return isinstance(self.data, tuple | Tensor | Mapping)

    @property
    def is_in_memory(self) -> bool:
        """Whether the data is one batch or a list of batches, and not drawn on demand."""
        return self.is_one_batch or isinstance(self.data, list)

    @property
    def stored_batches(self) -> list[Batch]:
        """The batches in memory as they were given; empty for data that is drawn on demand."""
        if self.is_one_batch:
            return [self.data]
        return self.data if isinstance(self.data, list) else []

    def batches(self) -> Iterator[Batch]:
        """Yield every batch of the data once, on the model's device and in its dtype.

        Yields:
            Pairs (inputs, targets); with a `whole_loss` whatever the data holds.

        Raises:
            InputError: if there is no batch.
        """
        batch = None
        for batch in self.stored_batches if self.is_in_memory else self.data:
            yield self.prepare(batch)
        if batch is None:
            raise InputError("the data holds no batch; give at least one.")

    def prepare(self, batch: Batch) -> Batch:
        """Return a batch on the model's device and in its dtype, after checking it."""
        self._check_batch(batch, with_values=not self.is_in_memory)
        return move_batch(batch, self.device, self.dtype)

    def loss_on(self, batch: Batch) -> Tensor:
        """Return the loss on one batch, a scalar tensor.

        Args:
            batch: as `batches` gives it.

        Returns:
            The loss.

        Raises:
            ArgumentTypeError: if the loss is not a tensor.
            ShapeError: if it is not a scalar.
        """
        with FitCheck(self.model, batch):
            if isinstance(self.loss, WholeLoss):
                return _scalar(self.loss.function(self.model, batch))
            return self.loss_of(self.model(batch[0]), batch[1])

    def loss_of(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the loss of an output, a scalar tensor; not with a `whole_loss`."""
        if isinstance(self.loss, WholeLoss | str):
            raise _no_outputs()
        return _scalar(call_loss(self.loss, output, target))

    def output_on(self, batch: Batch) -> Tensor:
        """Return the model's output on one batch's inputs.

        Args:
            batch: as `batches` gives it.

        Returns:
            The output, samples first.

        Raises:
            ArgumentTypeError: if the output is not a tensor.
            StateError: if the problem has a `whole_loss`.
        """
        if not self.has_outputs:
            raise _no_outputs()
        with FitCheck(self.model, batch[0]):
            output = self.model(batch[0])
        check_output(output)
        return cast(Tensor, output)

    def _tensors(self) -> Iterator[Tensor]:
        return chain(self.model.parameters(), self.model.buffers())

    def _check_device(self) -> None:
        devices = sorted({str(tensor.device) for tensor in self._tensors()})
        if len(devices) > 1:
            raise InputError(
                f"the model is spread over the devices {', '.join(devices)}; move it to one with "
                "model.to(device)."
            )
        if devices == ["meta"]:
            raise InputError(
                "the model is on the meta device and has no values; allocate it with to_empty "
                "and initialize it."
            )

    def _check_data(self) -> None:
        for batch in self.stored_batches:
            self._check_batch(batch, with_values=True)
        readable = isinstance(self.data, Iterable) and not isinstance(self.data, Iterator)
        if not (self.is_in_memory or readable):
            raise ArgumentTypeError(
                "the data must be a batch (inputs, targets), a list of batches or a DataLoader, "
                f"which can be read again, got {type(self.data).__name__}."
            )
        if _known_length(self.data) == 0:
            raise InputError("the data is empty; give at least one batch.")

    def _check_batch(self, batch: Batch, with_values: bool) -> None:
        (check_pair if self.has_outputs else check_filled)(batch)
        if with_values and self.loss is cross_entropy:
            check_probabilities(batch[1])


def _known_length(data: Any) -> int | None:
    """Return the number of batches, or None: a stream of samples has no length."""
    try:
        return len(data) if isinstance(data, Sized) else None
    except TypeError:
        return None


def _scalar(loss: Any) -> Tensor:
    if not isinstance(loss, Tensor):
        raise ArgumentTypeError(f"the loss must be a tensor, got {type(loss).__name__}.")
    if loss.dim() != 0:
        raise ShapeError(
            f"the loss must be a scalar, got the shape {tuple(loss.shape)}; average over the "
            "samples, for instance with reduction='mean'."
        )
    return loss


def _no_outputs() -> StateError:
    return StateError("a whole_loss hides the model's output; give a loss(output, target).")
