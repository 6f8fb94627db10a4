"""Loss and accuracy on data, with the statistics of one's choice, the model left as it was."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import torch
from torch import nn

from normscope.errors import InputError
from normscope.layers.batches import same_randomness
from normscope.layers.kinds import is_batch_norm, is_lp_norm
from normscope.layers.population import population_statistics
from normscope.problem.batch import Batch, pieces, sample_count
from normscope.problem.loss import Loss, WholeLoss, accuracy
from normscope.problem.problem import Data, Problem
from normscope.registry import unknown_name
from normscope.validation import check_integer

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Evaluation", "Statistics", "evaluate"]

Statistics = Literal["running", "population", "batch"]


class Evaluation(NamedTuple):
    """What `evaluate` found: the mean loss, and the accuracy, None unless targets are labels."""

    loss: float
    accuracy: float | None

    def to_dict(self) -> dict[str, float | None]:
        """Both by name."""
        return self._asdict()

    def to_dataframe(self) -> pd.DataFrame:
        """One row."""
        from normscope.results.frame import frame

        return frame([self.to_dict()])

    def _repr_html_(self) -> str:
        from normscope.results.notebook import pairs_html

        return pairs_html(self._asdict(), "Evaluation")


def evaluate(
    model: nn.Module,
    loss: Loss | WholeLoss | str,
    data: Data,
    statistics: Statistics = "running",
    *,
    train_data: Data | None = None,
    batch_size: int = 512,
) -> Evaluation:
    """Mean loss and accuracy of a model on data, dropout off.

    Nothing of the model changes: parameters, buffers, training flags, random states.

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
        The loss and the accuracy, each batch counted by its samples.

    Raises:
        ArgumentTypeError: if the batch size is not a whole number.
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
    with same_randomness(model, data), torch.no_grad():
        evaluated = _with_statistics(model, statistics, loss, train_data, batch_size)
        problem = Problem(evaluated, loss, data)
        with _inference_flags(evaluated, batch_norm_trains=statistics == "batch"):
            return _averaged(problem, batch_size)


def _with_statistics(
    model: nn.Module,
    statistics: Statistics,
    loss: Loss | WholeLoss | str,
    train_data: Data | None,
    batch_size: int,
) -> nn.Module:
    """The model itself, or a copy where evaluating would write into its buffers."""
    if statistics == "running":
        return model
    evaluated = copy.deepcopy(model)
    if train_data is not None:
        is_one_batch = Problem(evaluated, loss, train_data).is_one_batch
        batches = pieces(train_data, batch_size) if is_one_batch else train_data
        population_statistics(evaluated, batches)
    return evaluated


@contextmanager
def _inference_flags(model: nn.Module, batch_norm_trains: bool) -> Iterator[None]:
    """The model in eval mode, on demand except its batch-statistics layers; then as it was."""
    flags = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        if batch_norm_trains:
            for module in model.modules():
                if is_batch_norm(module) or is_lp_norm(module):
                    module.train()
        yield
    finally:
        for module, flag in flags:
            module.training = flag


def _averaged(problem: Problem, batch_size: int) -> Evaluation:
    """Means over the samples, batch by batch."""
    samples, total_loss, right = 0, 0.0, 0.0
    has_accuracy = True
    for whole in problem.batches():
        for batch in pieces(whole, batch_size) if problem.is_one_batch else [whole]:
            count = sample_count(batch)
            batch_loss, batch_accuracy = _scores(problem, batch)
            samples += count
            total_loss += count * batch_loss
            right += count * (batch_accuracy or 0.0)
            has_accuracy = has_accuracy and batch_accuracy is not None
    return Evaluation(total_loss / samples, right / samples if has_accuracy else None)


def _scores(problem: Problem, batch: Batch) -> tuple[float, float | None]:
    """Loss and accuracy on one batch; the latter needs class labels."""
    if not problem.has_outputs:
        return problem.loss_on(batch).item(), None
    output, target = problem.output_on(batch), batch[1]
    has_labels = output.dim() == 2 and target.dim() == 1 and not target.is_floating_point()
    loss = problem.loss_of(output, target).item()
    return loss, accuracy(output, target) if has_labels else None
