"""Loss and accuracy on data, with a choice of batch statistics; the model is not changed."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch
from torch import nn

from normscope.errors import InputError
from normscope.layers.kinds import is_batch_norm, is_lp_norm
from normscope.layers.population import population_statistics
from normscope.problem.batch import Batch, sample_count, split_batch
from normscope.problem.isolation import RandomGenerators, isolated
from normscope.problem.loss import Loss, WholeLoss, accuracy, loss_modules
from normscope.problem.parameters import check_initialized
from normscope.problem.problem import Data, Problem
from normscope.registry import unknown_name
from normscope.text import Rendered, Table
from normscope.validation import check_integer

Statistics = Literal["running", "population", "batch"]


class _Scores(NamedTuple):
    loss: float
    accuracy: float | None


class Evaluation(_Scores, Rendered):
    """The result of `evaluate`: the mean loss, and the accuracy if the targets are labels."""

    __str__ = _Scores.__repr__

    def to_dict(self) -> dict[str, float | None]:
        """Return both by name."""
        return self._asdict()

    def _table(self) -> Table:
        return Table(self._asdict(), "Evaluation")


def evaluate(
    model: nn.Module,
    loss: Loss | WholeLoss | str,
    data: Data,
    statistics: Statistics = "running",
    *,
    train_data: Data | None = None,
    batch_size: int = 512,
) -> Evaluation:
    """Return the mean loss and accuracy of a model on data, without dropout.

    The model does not change: parameters, buffers, training flags, RNG states.

    Args:
        model: any model.
        loss: called as ``loss(output, target)``, a registered name, or a `whole_loss`.
        data: one batch, a list of batches or a DataLoader; usually the test split.
        statistics: what batch normalization uses: its ``"running"`` averages; the
            ``"population"`` statistics of ``train_data``; or those of each ``"batch"``, as in
            training (a noisy layer then adds its noise, too).
        train_data: the data whose population statistics are used.
        batch_size: largest piece of data that is one batch; pieces differ by at most one sample
            (with 2, an odd number of samples ends with a piece of 3).

    Returns:
        The loss and the accuracy, each batch weighted by its number of samples.

    Raises:
        ArgumentTypeError: if the batch size is not an integer.
        InputError: if ``train_data`` is missing or not used, or the batch size is not positive.
        UnknownNameError: if there are no such statistics.

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
        if train_data is not None:
            is_one_batch = Problem(model, loss, train_data).is_one_batch
            batches = split_batch(train_data, batch_size) if is_one_batch else train_data
            population_statistics(model, batches)
        model.eval()
        for module in model.modules() if statistics == "batch" else ():
            if is_batch_norm(module) or is_lp_norm(module):
                module.train()
        return _mean_over_batches(problem, batch_size)


def _mean_over_batches(problem: Problem, batch_size: int) -> Evaluation:
    samples, total_loss, correct = 0, 0.0, 0.0
    has_accuracy = True
    for whole in problem.batches():
        for batch in split_batch(whole, batch_size) if problem.is_one_batch else [whole]:
            count = sample_count(batch)
            batch_loss, batch_accuracy = _evaluate_batch(problem, batch)
            samples += count
            total_loss += count * batch_loss
            correct += count * (batch_accuracy or 0.0)
            has_accuracy = has_accuracy and batch_accuracy is not None
    return Evaluation(total_loss / samples, correct / samples if has_accuracy else None)


def _evaluate_batch(problem: Problem, batch: Batch) -> tuple[float, float | None]:
    """Return loss and accuracy on one batch; the latter needs class labels."""
    if not problem.has_outputs:
        return problem.loss_on(batch).item(), None
    output, target = problem.output_on(batch), batch[1]
    has_labels = output.dim() == 2 and target.dim() == 1 and not target.is_floating_point()
    loss = problem.loss_of(output, target).item()
    return loss, accuracy(output, target) if has_labels else None
