"""The loss over several batches, reduced as the loss itself reduces one batch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from normscope.problem.batch import Batch, batch_count, copy_batch, join_batches
from normscope.problem.isolation import isolated
from normscope.problem.loss import model_loss
from normscope.problem.loss_state import loss_modules
from normscope.problem.outputs import output_tensors, replace_tensors
from normscope.problem.problem import Problem
from normscope.problem.recognition import (
    IGNORED_LABELS,
    batch_weight,
    has_ignored_labels,
    is_sum,
    no_label_error,
)
from normscope.warn import warn

_ROUNDING = torch.finfo(torch.float32).eps  # of outputs that are integers


class LossTotal:
    """Combines the losses of batches into the loss over all their samples.

    Losses of torch are combined by their reduction, class weights and ignored labels. A custom
    loss is called on two batches together to find out whether it is a mean or a sum over samples.
    A `whole_loss` and the loss that a model itself returns are taken as means. For any other loss
    the mean is weighted by samples.

    Args:
        problem: whose loss it is.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._modules = loss_modules(problem.loss, problem.model)
        self._sum, self._weighted, self._weights = 0.0, 0.0, 0.0
        self._may_be_mean, self._may_be_sum = not is_sum(problem.loss), True
        self._before: tuple[Any, Any, int, float] | None = None
        self._batches, self._ignores = 0, False

    def add(self, loss: float, batch: Batch) -> None:
        """Add a batch whose outputs are not known: its loss is the mean over samples."""
        self._ignores |= has_ignored_labels(batch)
        self._add(loss, batch_count(batch))

    def add_output(self, output: Any, target: Any, samples: int) -> None:
        """Add a batch by its output; neither output nor target is changed."""
        loss = self._loss(output, target)
        weight = batch_weight(self._problem.loss, target)
        self._add(loss, samples if weight is None else weight)
        if self._problem.loss is model_loss:
            self._ignores |= has_ignored_labels(target)
        elif weight is None and self._may_be_mean:
            self._try_with_last(output, target, samples, loss)

    def value(self) -> float:
        """Return the loss over all batches.

        Raises:
            InputError: if it is a mean that ignores every label.

        Warns:
            NormscopeWarning: if the loss is neither a mean nor a sum over samples, or not known to
                be one and labels are ignored.
        """
        if self._ignores and self._batches > 1:
            warn(IGNORED_LABELS)
        if self._may_be_sum and not self._may_be_mean:
            return self._sum
        if not self._may_be_mean:
            warn(
                "the loss of two batches together is neither the mean nor the sum of theirs, so "
                "the value is the mean over batches weighted by samples, which depends on the "
                "batch size; for another give one batch and a batch_size that holds it."
            )
        if self._weights == 0:
            raise no_label_error()
        return self._weighted / self._weights

    def _add(self, loss: float, weight: float) -> None:
        self._sum += loss
        self._batches += 1
        if weight:  # a mean over nothing is NaN
            self._weighted += weight * loss
            self._weights += weight

    def _loss(self, output: Any, target: Any) -> float:
        # copies, which a loss may overwrite
        copied = replace_tensors(output, Tensor.clone)
        return self._problem.loss_of(copied, copy_batch(target)).item()

    def _try_with_last(self, output: Any, target: Any, samples: int, loss: float) -> None:
        """Compare the loss of this batch and the last one together with theirs alone."""
        last, self._before = self._before, (output, target, samples, loss)
        if last is None:
            return
        try:
            with isolated(nn.Module(), *self._modules):
                outputs = _join_outputs(last[0], output)
                both = self._loss(outputs, join_batches([last[1], target]))
        except Exception:  # other shapes than before, or a loss for one number of samples
            return
        if math.isnan(both):
            return
        before, share = last[3], samples / (samples + last[2])
        mean, total = before + share * (loss - before), before + loss
        dtypes = [each.dtype for each in output_tensors(output) if each.is_floating_point()]
        rounding = max((torch.finfo(dtype).eps for dtype in dtypes), default=_ROUNDING)
        bound = rounding**0.5 * max(abs(both), abs(loss), abs(before))
        self._may_be_mean = self._may_be_mean and abs(mean - both) <= bound
        self._may_be_sum = self._may_be_sum and abs(total - both) <= bound


def _join_outputs(one: Any, other: Any) -> Any:
    """Return two outputs of one structure as one; their scalars, such as a loss, become NaN."""
    others = iter(output_tensors(other))

    def join(tensor: Tensor) -> Tensor:
        following = next(others)
        if tensor.dim() == 0:
            return torch.full_like(tensor, math.nan)
        return torch.cat([tensor, following])

    return replace_tensors(one, join)
