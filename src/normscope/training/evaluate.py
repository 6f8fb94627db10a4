"""Loss and accuracy on data, with a choice of batch statistics; the model is not changed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from normscope.errors import InputError
from normscope.interrupts import interrupt_safe
from normscope.layers.kinds import is_lp_norm
from normscope.layers.population import population_statistics
from normscope.problem.batch import (
    Batch,
    batch_count,
    copy_batch,
    has_samples,
    join_batches,
    split_batch,
)
from normscope.problem.isolation import RandomGenerators, isolated
from normscope.problem.loss import Loss, WholeLoss, accuracy, model_loss
from normscope.problem.loss_state import loss_modules
from normscope.problem.modes import is_batch_norm
from normscope.problem.outputs import output_tensors, replace_tensors
from normscope.problem.parameters import check_initialized
from normscope.problem.problem import Data, Problem
from normscope.problem.recognition import (
    IGNORED_LABELS,
    batch_weight,
    has_ignored_labels,
    ignored_label,
    is_sum,
    no_label_error,
)
from normscope.problem.sharded import gather_shards
from normscope.problem.wrappers import run_unwrapped
from normscope.registry import unknown_name
from normscope.text import Rendered, Table
from normscope.validation import check_integer
from normscope.warn import warn

Statistics = Literal["running", "population", "batch"]
_ROUNDING = torch.finfo(torch.float32).eps  # of outputs that are integers


class _Scores(NamedTuple):
    loss: float
    accuracy: float | None


class Evaluation(_Scores, Rendered):
    """The result of `evaluate`: the loss, and the accuracy if the targets are labels."""

    __str__ = _Scores.__repr__

    def to_dict(self) -> dict[str, float | None]:
        """Return both by name."""
        return self._asdict()

    def _table(self) -> Table:
        return Table(self._asdict(), "Evaluation")


@interrupt_safe
@gather_shards
def evaluate(
    model: nn.Module,
    loss: Loss | WholeLoss | str | None,
    data: Data,
    statistics: Statistics = "running",
    *,
    train_data: Data | None = None,
    batch_size: int = 512,
) -> Evaluation:
    """Return the loss and accuracy of a model over the whole data, without dropout.

    The loss is reduced over the whole data as its reduction says: a sum over all samples, or a mean
    in which class weights count and ignored labels do not. A custom loss is called on two batches
    together, and summed or averaged over samples accordingly. If it is neither (it ignores some
    samples, or compares them with each other), the value is the mean over batches, each weighted by
    its number of samples, as with a `whole_loss` and with the loss that the model itself returns.
    In all other cases, except with the statistics of each batch, the batch size does not matter.

    The model does not change: parameters, buffers, attributes, training flags, RNG states.

    Args:
        model: any model.
        loss: called as ``loss(output, target)``, a registered name, a `whole_loss`, or None for the
            loss that the model itself returns.
        data: one batch, a list of batches or a DataLoader; usually the test split. A batch whose
            rows are not samples, such as a graph, is not cut.
        statistics: what batch normalization uses: its ``"running"`` averages; the
            ``"population"`` statistics of ``train_data``; or those of each ``"batch"``, as in
            training (a noisy layer then adds its noise, too).
        train_data: the data whose population statistics are used.
        batch_size: largest piece of data that is one batch; pieces differ by at most one sample
            (with 2, an odd number of samples ends with a piece of 3).

    Returns:
        The loss and the accuracy; of the labels only those count that are among the model's
        classes and that the loss does not ignore. The accuracy is None if there are none, and for
        a structured output without ``logits`` (samples, classes).

    Raises:
        ArgumentTypeError: if the batch size is not an integer.
        InputError: if ``train_data`` is missing or not used, if the batch size is not positive, or
            if a mean loss ignores every label.
        UnknownNameError: if there are no such statistics.

    Warns:
        NormscopeWarning: if a custom loss is neither a mean nor a sum over samples, or labels are
            ignored by a loss whose reduction is not known.

    >>> labels = torch.tensor([0, 1])
    >>> evaluate(nn.Identity(), "cross_entropy", (torch.eye(2) * 50, labels))
    Evaluation(loss=0.0, accuracy=1.0)
    """
    if statistics not in get_args(Statistics):
        raise unknown_name("statistics", statistics, get_args(Statistics))
    if (statistics == "population") != (train_data is not None):
        raise InputError(
            "train_data is needed with statistics='population' and only there, got "
            f"statistics={statistics!r} {'without' if train_data is None else 'with'} it."
        )
    check_integer("batch_size", batch_size)
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size}.")
    problem = Problem(model, loss, data)
    check_initialized(model)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with (
        isolated(model, *loss_modules(problem.loss, model), tensors=buffers),
        RandomGenerators(data).preserved(),
        torch.no_grad(),
    ):
        run_unwrapped(model)
        if train_data is not None:
            is_one_batch = Problem(model, loss, train_data).is_one_batch
            batches = _pieces(train_data, batch_size) if is_one_batch else train_data
            population_statistics(model, batches)
        model.eval()
        for module in model.modules() if statistics == "batch" else ():
            if is_batch_norm(module) or is_lp_norm(module):
                module.train()
        return _evaluate_batches(problem, batch_size)


def _evaluate_batches(problem: Problem, batch_size: int) -> Evaluation:
    total, labels = _LossTotal(problem), _Labels(ignored_label(problem.loss))
    for whole in problem.batches():
        for batch in _pieces(whole, batch_size) if problem.is_one_batch else [whole]:
            copied = copy_batch(batch)  # which the model may overwrite
            if problem.has_outputs:
                output, target = problem.output_on(copied), problem.target_of(batch)
                labels.add(_class_scores(output), target)
                total.add_output(output, target, batch_count(batch))
            else:
                total.add(problem.loss_on(copied).item(), batch)
    return Evaluation(total.value(), labels.accuracy())


def _pieces(batch: Batch, size: int) -> list[Batch]:
    """Return the pieces of a batch; the whole if its rows are not samples."""
    return split_batch(batch, size) if has_samples(batch) else [batch]


def _class_scores(output: Any) -> Any:
    """Return the output, or the ``logits`` of a structured one."""
    if isinstance(output, Tensor):
        return output
    named = output if isinstance(output, Mapping) else {}
    return named.get("logits", getattr(output, "logits", None))


class _Labels:
    """Counts the labels that are predicted.

    Args:
        ignored: a label that does not count.
    """

    def __init__(self, ignored: int | None) -> None:
        self._ignored, self._correct, self._count = ignored, 0, 0

    def add(self, output: Any, target: Any) -> None:
        """Count the labels of one batch; other outputs and targets have none."""
        if not isinstance(output, Tensor) or not isinstance(target, Tensor):
            return
        if output.dim() != 2 or target.shape != output.shape[:1] or target.is_floating_point():
            return
        counts = (target >= 0) & (target < output.shape[1])
        if self._ignored is not None:
            counts &= target != self._ignored
        if number := int(counts.sum()):
            self._correct += round(accuracy(output[counts], target[counts]) * number)
            self._count += number

    def accuracy(self) -> float | None:
        """Return the fraction of the labels that are predicted; None if there are none."""
        return self._correct / self._count if self._count else None


class _LossTotal:
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
