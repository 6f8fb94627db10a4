"""The loss of guessing: the best that an output which is the same for every sample can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from normscope.problem.batch import Batch
from normscope.problem.loss import is_cross_entropy, is_squared_error, is_unweighted, squared_error
from normscope.problem.problem import Problem

__all__ = ["guessing_loss"]


def guessing_loss(problem: Problem, batches: Sequence[Batch]) -> float | None:
    r"""The loss of the best constant output.

    .. math:: \min_c \frac1m \sum_i L(c, y_i): \quad
        c = \log \bar{y} \text{ (cross-entropy)}, \quad c = \bar{y} \text{ (squared error)}

    with the mean target, of labels the share of each class.

    Args:
        problem: whose loss it is.
        batches: pairs (inputs, targets).

    Returns:
        The loss over all of them; None unless it is the plain mean of the cross-entropy or of the
        squared error (no weights, no smoothing, no sum), of labels or of one vector for each
        sample.

    >>> half = [(torch.zeros(4, 1), torch.tensor([0, 1, 0, 1]))]
    >>> found = guessing_loss(Problem(torch.nn.Linear(1, 2), "cross_entropy", half), half)
    >>> round(found, 4)  # log 2
    0.6931
    """
    loss: Any = problem.loss
    targets = [batch[1] for batch in batches]
    if not _is_plain_mean(loss) or len({each.shape[1:] for each in targets}) > 1:
        return None
    target, logarithmic = torch.cat(targets), is_cross_entropy(loss)
    # to torch's squared error whole numbers are numbers
    shares = _vectors(target, with_labels=logarithmic or loss is squared_error)
    if shares is None:
        return None
    mean = shares.mean(0, keepdim=True)
    constant = mean.clamp_min(torch.finfo(mean.dtype).tiny).log() if logarithmic else mean
    with torch.no_grad():
        return float(loss(constant.expand_as(shares), target))


def _is_plain_mean(loss: Any) -> bool:
    """Whether the best constant is that of the equation."""
    if not (is_cross_entropy(loss) or is_squared_error(loss)):
        return False
    is_mean = getattr(loss, "reduction", "mean") == "mean"
    return is_mean and is_unweighted(loss) and not getattr(loss, "label_smoothing", 0.0)


def _vectors(target: Tensor, with_labels: bool) -> Tensor | None:
    """Targets as one vector for each sample, labels one-hot; None if they are neither."""
    if target.is_floating_point():
        return target if target.dim() == 2 else None
    if not with_labels or target.dim() != 1 or not bool((target >= 0).all()):
        return None
    return functional.one_hot(target.long()).to(torch.get_default_dtype())
