"""`Problem`: a model, a loss and data, validated once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from normscope.errors import ArgumentTypeError, InputError, ShapeError, StateError
from normscope.problem.batch import (
    Batch,
    batch_count,
    check_filled,
    describe_batch,
    is_graph,
    is_record,
    move_batch,
)
from normscope.problem.error_messages import FitCheck, require_module
from normscope.problem.loss import (
    LOSSES,
    Loss,
    WholeLoss,
    call_loss,
    check_probabilities,
    check_signature,
    cross_entropy,
    model_loss,
    squared_error,
)
from normscope.problem.model_call import check_batch, read_batch, single_input
from normscope.problem.recognition import (
    IGNORED_LABELS,
    batch_weight,
    has_ignored_labels,
    is_sum,
    no_label_error,
)
from normscope.problem.wrappers import uncompiled
from normscope.warn import warn

Data: TypeAlias = Any
"""One batch, or an iterable of batches that can be read again."""


@dataclass(frozen=True, eq=False)
class Problem:
    """A model, a loss and data.

    Batches follow the model: they come on its device, their floating-point tensors in the dtype
    of its parameters.

    Args:
        model: any module whose parameters are on one device.
        loss: called as ``loss(output, target)`` with whatever the model returns, the mean over the
            samples; a name of `normscope.problem.LOSSES`; a `whole_loss`; or None, as "model", for
            the loss that the model itself returns.
        data: one batch, a list of batches, or a DataLoader (any iterable that can be read again).
            A batch is a pair ``(inputs, targets)``: ``model(inputs)``, or ``model(*inputs)`` for a
            tuple, or ``model(**inputs)`` for a mapping of inputs; a tuple ``(x1, x2, ...,
            targets)``; a mapping or a dataclass object of the model's arguments with ``labels`` as
            the targets; or a graph of torch_geometric with ``y`` as the targets. With a
            `whole_loss` it may also be a tensor, or any other structure of tensors.

    Examples:
        >>> problem = Problem(nn.Identity(), "squared_error", (torch.ones(2, 3), torch.zeros(2, 3)))
        >>> [problem.loss_on(batch).item() for batch in problem.batches()]
        [1.5]
    """

    model: nn.Module
    loss: Loss | WholeLoss | str | None
    data: Data

    def __post_init__(self) -> None:
        require_module(self.model)
        loss = model_loss if self.loss is None else self.loss
        loss = LOSSES[loss] if isinstance(loss, str) else uncompiled(loss)
        if isinstance(loss, type):
            raise ArgumentTypeError(
                f"the loss must be called with (output, target), got the class {loss.__name__}; "
                f"create an instance: {loss.__name__}()."
            )
        if isinstance(loss, WholeLoss):
            first, *second = loss.parts
            what = "the loss" if loss.outputs is None else "outputs of whole_loss"
            check_signature(first, "model", "batch", what=what)
            for each in second:
                check_signature(each, "outputs", "batch", what="loss of whole_loss")
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
        """Whether the model's output is known: not with a `whole_loss` of one function."""
        return not isinstance(self.loss, WholeLoss) or self.loss.outputs is not None

    @property
    def output_loss(self) -> Loss:
        """The loss as a function of output and target.

        Raises:
            StateError: if a `whole_loss` hides the output.
        """
        loss = self.loss.loss if isinstance(self.loss, WholeLoss) else self.loss
        if loss is None or isinstance(loss, str):
            raise StateError(
                "a whole_loss of one function hides the model's output; give a loss(output, "
                "target), or whole_loss(outputs=..., loss=...)."
            )
        return loss

    @property
    def is_one_batch(self) -> bool:
        """Whether the data is one batch in memory, whose rows may be drawn in any order."""
        data = self.data
        return isinstance(data, tuple | Tensor | Mapping) or is_graph(data) or is_record(data)

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
            Batches of the data's form; lists as tuples, mappings as dictionaries.

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
            if isinstance(self.loss, WholeLoss) and self.loss.outputs is None:
                return _scalar(self.loss.function(self.model, batch))
            return self.loss_of(self._output(batch), self.target_of(batch))

    def loss_of(self, output: Any, target: Any) -> Tensor:
        """Return the loss of an output, a scalar tensor; not if a `whole_loss` hides outputs.

        Args:
            output: as `output_on` returns it.
            target: as `target_of` returns it.

        Returns:
            The loss.
        """
        return _scalar(call_loss(self.output_loss, output, target))

    def output_on(self, batch: Batch) -> Any:
        """Return the model's output on one batch's inputs.

        Args:
            batch: as `batches` gives it.

        Returns:
            What the model returns, of any structure; of a `whole_loss` what its ``outputs`` does.

        Raises:
            StateError: if a `whole_loss` hides the output.
        """
        _ = self.output_loss
        inputs = self.single_input(batch)
        with FitCheck(self.model, batch if inputs is None else inputs):
            return self._output(batch)

    def target_of(self, batch: Batch) -> Any:
        """Return the target of the loss; with a `whole_loss` the batch itself.

        Args:
            batch: as `batches` gives it.
        """
        if isinstance(self.loss, WholeLoss):
            return batch
        return read_batch(batch, self.model).target

    def weight_of(self, batch: Batch) -> float:
        """Return the weight of a batch in the mean loss over several; see `batch_weight`.

        Args:
            batch: as `batches` gives it.

        Returns:
            The number of samples where the loss does not define another weight.

        Warns:
            NormscopeWarning: if it does not, and ignored labels show that another one is likely.
        """
        target = self.target_of(batch)
        weight = batch_weight(self.loss, target) if self.has_outputs else None
        if weight is not None:
            return weight
        is_one = self.is_one_batch or _known_length(self.data) == 1
        if not is_one and not is_sum(self.loss) and has_ignored_labels(target):
            warn(IGNORED_LABELS)
        return float(batch_count(batch))

    def counts(self, batch: Batch) -> bool:
        """Return False for a batch all of whose labels the loss ignores: its mean is not finite.

        Args:
            batch: as `batches` gives it.
        """
        return not self.has_outputs or batch_weight(self.loss, self.target_of(batch)) != 0

    def batch_factors(self, weights: Sequence[float]) -> list[float]:
        """Return the factors by which the losses of batches add up to the loss over all.

        Args:
            weights: of all batches, as `weight_of` returns them.

        Returns:
            Shares of the total weight; ones for a loss that is a sum over samples.

        Raises:
            InputError: if it is a mean that ignores every label.
        """
        if is_sum(self.loss):
            return [1.0] * len(weights)
        total = sum(weights)
        if total == 0:
            raise no_label_error()
        return [weight / total for weight in weights]

    def single_input(self, batch: Batch) -> Tensor | None:
        """Return the tensor on which the model is called as ``model(x)``; None for other calls.

        Args:
            batch: as `batches` gives it.
        """
        return None if isinstance(self.loss, WholeLoss) else single_input(batch)

    def _output(self, batch: Batch) -> Any:
        if isinstance(self.loss, WholeLoss) and self.loss.outputs is not None:
            return self.loss.outputs(self.model, batch)
        return read_batch(batch, self.model)(self.model)

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
        if isinstance(self.loss, WholeLoss):
            check_filled(batch)
            return
        check_batch(batch, self.model)
        if self.loss is cross_entropy or self.loss is squared_error:
            target = self.target_of(batch)
            _require_tensor(target, batch)
            if with_values and self.loss is cross_entropy:
                check_probabilities(target)


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


def _require_tensor(target: Any, batch: Batch) -> None:
    """Reject targets of a registered loss that are not one tensor."""
    if not isinstance(target, Tensor):
        raise ArgumentTypeError(
            f"this loss compares the output with one tensor of targets, got {describe_batch(batch)}"
            "; name it 'labels' in a dictionary, put several batches in a list, and for other "
            "targets give a callable loss(output, target)."
        )
