"""What is trained or measured: a model, a loss and data, checked once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from normscope.errors import ArgumentTypeError, InputError, ShapeError, StateError
from normscope.problem.batch import Batch, check_filled, check_pair, moved
from normscope.problem.diagnose import Fitting, require_module
from normscope.problem.loss import (
    LOSSES,
    Loss,
    WholeLoss,
    called,
    check_call,
    check_output,
    check_probabilities,
    cross_entropy,
)

__all__ = ["Data", "Problem"]

Data: TypeAlias = Any  # one batch, or an iterable of batches that can be read again


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
    _evaluation: _Evaluation = field(init=False, repr=False)

    def __post_init__(self) -> None:
        require_module(self.model)
        loss = LOSSES[self.loss] if isinstance(self.loss, str) else self.loss
        if isinstance(loss, type):
            raise ArgumentTypeError(
                f"the loss must be called with (output, target), got the class {loss.__name__}; "
                f"make one of it: {loss.__name__}()."
            )
        if not (callable(loss) or isinstance(loss, WholeLoss)):
            raise ArgumentTypeError(
                "the loss must be a callable (output, target), a registered name or a whole_loss, "
                f"got {type(loss).__name__}."
            )
        if isinstance(loss, WholeLoss):
            check_call(loss.function, "model", "batch")
        else:
            check_call(loss, "output", "target")
        object.__setattr__(self, "loss", loss)
        object.__setattr__(self, "_evaluation", _Evaluation(self.model, loss))
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
        """Whether output and loss can be told apart: not with a `whole_loss`."""
        return not isinstance(self.loss, WholeLoss)

    @property
    def is_one_batch(self) -> bool:
        """Whether the data is one batch in memory, whose rows may be drawn in any order."""
        return isinstance(self.data, tuple | Tensor | Mapping)

    @property
    def _is_in_memory(self) -> bool:
        return self.is_one_batch or isinstance(self.data, list)

    def batches(self) -> Iterator[Batch]:
        """Every batch of the data once, on the model's device and in its dtype.

        Yields:
            Pairs (inputs, targets); with a `whole_loss` whatever the data holds.

        Raises:
            InputError: if there is no batch.
        """
        batch = None
        for batch in [self.data] if self.is_one_batch else self.data:
            yield self.placed(batch)
        if batch is None:
            raise InputError("the data holds no batch; give at least one.")

    def placed(self, batch: Batch) -> Batch:
        """One batch, checked, on the model's device and in its dtype."""
        self._check_batch(batch, with_values=not self._is_in_memory)
        return moved(batch, self.device, self.dtype)

    def loss_on(self, batch: Batch, tensors: Mapping[str, Tensor] | None = None) -> Tensor:
        """The loss on one batch, with the model's own or other parameters and buffers.

        Args:
            batch: as `batches` gives it.
            tensors: parameters and buffers by qualified name to use in place of the model's own;
                those left out stay. None: call the model itself.

        Returns:
            The loss, a tensor without dimensions; anything else is refused.
        """
        with Fitting(self.model, batch):
            if not tensors:
                return _scalar(self._evaluation.forward(batch))
            renamed = {f"model.{name}": tensor for name, tensor in tensors.items()}
            return _scalar(functional_call(self._evaluation, renamed, (batch,)))

    def loss_of(self, output: Tensor, target: Tensor) -> Tensor:
        """The loss of an output, a tensor without dimensions; not with a `whole_loss`."""
        return _scalar(self._evaluation.loss_of(output, target))

    def output_on(self, batch: Batch, tensors: Mapping[str, Tensor] | None = None) -> Tensor:
        """The model's output on one batch's inputs; arguments as in `loss_on`.

        Args:
            batch: as `batches` gives it.
            tensors: parameters and buffers by qualified name to use in place of the model's own.

        Returns:
            The output, samples first.

        Raises:
            ArgumentTypeError: if the output is not a tensor.
            StateError: if the problem has a `whole_loss`.
        """
        if not self.has_outputs:
            raise _no_outputs()
        with Fitting(self.model, batch[0]):
            if tensors:
                output = functional_call(self.model, dict(tensors), (batch[0],))
            else:
                output = self.model(batch[0])
        check_output(output)
        return cast(Tensor, output)

    def _tensors(self) -> Iterator[Tensor]:
        yield from self.model.parameters()
        yield from self.model.buffers()

    def _check_device(self) -> None:
        devices = sorted({str(tensor.device) for tensor in self._tensors()})
        if len(devices) > 1:
            raise InputError(
                f"the model is spread over the devices {', '.join(devices)}; move it to one by "
                "model.to(device)."
            )
        if devices == ["meta"]:
            raise InputError(
                "the model is on the meta device and has no values; give it storage by to_empty "
                "and initialize it."
            )

    def _check_data(self) -> None:
        if self._is_in_memory:
            for batch in [self.data] if self.is_one_batch else self.data:
                self._check_batch(batch, with_values=True)
        elif isinstance(self.data, Iterator) or not isinstance(self.data, Iterable):
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


class _Evaluation(nn.Module):
    """Model and loss as one module, so that any of its tensors can be replaced for one call."""

    def __init__(self, model: nn.Module, loss: Loss | WholeLoss) -> None:
        super().__init__()
        self.model = model
        # a loss may be a module: kept out of the children, whose names are the model's alone
        self.loss = (loss,)

    def forward(self, batch: Batch) -> Tensor:
        """The loss on one batch."""
        (loss,) = self.loss
        if isinstance(loss, WholeLoss):
            return loss.function(self.model, batch)
        inputs, targets = batch
        return cast(Tensor, called(loss, self.model(inputs), targets))

    def loss_of(self, output: Tensor, target: Tensor) -> Tensor:
        """The loss of an output that is there already."""
        (loss,) = self.loss
        if isinstance(loss, WholeLoss):
            raise _no_outputs()
        return cast(Tensor, called(loss, output, target))


def _known_length(data: Any) -> int | None:
    """How many batches there are, if that can be told: a stream of samples has no length."""
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
            "samples, for instance by reduction='mean'."
        )
    return loss


def _no_outputs() -> StateError:
    return StateError("a whole_loss does not show the model's output; give a loss(output, target).")
