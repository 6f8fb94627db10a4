"""Loss and accuracy on data, with a choice of batch statistics; the model is not changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from normscope.errors import InputError
from normscope.interrupts import interrupt_safe
from normscope.layers.kinds import is_batch_norm, is_lp_norm
from normscope.layers.population import population_statistics
from normscope.problem.batch import Batch, batch_count, copy_batch, has_samples, split_batch
from normscope.problem.isolation import RandomGenerators, isolated
from normscope.problem.loss import Loss, WholeLoss, accuracy
from normscope.problem.loss_state import loss_modules
from normscope.problem.parameters import check_initialized
from normscope.problem.problem import Data, Problem
from normscope.problem.recognition import ignored_label
from normscope.problem.sharded import gather_shards
from normscope.problem.wrappers import run_unwrapped
from normscope.registry import unknown_name
from normscope.text import Rendered, Table
from normscope.training.loss_total import LossTotal
from normscope.validation import check_integer

Statistics = Literal["running", "population", "batch"]


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
    total, labels = LossTotal(problem), _Labels(ignored_label(problem.loss))
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
