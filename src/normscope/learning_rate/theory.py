"""The mean-field theory's word on the learning rate, where it can read the model."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass

from torch import nn

from normscope.curvature.batch import Batch
from normscope.curvature.problem import Problem
from normscope.errors import NormscopeError
from normscope.learning_rate.rules import UpdateRule
from normscope.losses import cross_entropy, squared_error

__all__ = ["Theory", "by_theory"]


@dataclass(frozen=True)
class Theory:
    """A learning rate from the architecture alone.

    Args:
        rate: the bound; None if the theory has none.
        reason: why not, or in which regime the net is.
    """

    rate: float | None
    reason: str


def by_theory(problem: Problem, batch: Batch, rule: UpdateRule, closure: str = "train") -> Theory:
    """The theory's bound on the learning rate.

    The theory is about the squared error, whose Hessian in the outputs is the identity. For the
    cross-entropy at nearly equal probabilities of C classes that Hessian is 1/C times a projection,
    and the bound is C times as large.

    Reference: wei2018, Eq. (7).

    Args:
        problem: model and loss.
        batch: whose inputs give the input's parameters.
        rule: of the optimizer.
        closure: "train", "frozen" or "printed".

    Returns:
        The rate, or None with the reason.
    """
    if not rule.is_exact:
        return Theory(None, f"the theory is about SGD, not {rule.name}")
    if not problem.has_outputs:
        return Theory(None, "the theory needs a loss(output, target)")
    factor = _output_factor(problem, batch)
    if factor is None:
        return Theory(None, "the theory knows the squared error and the cross-entropy only")
    try:
        predict = importlib.import_module("normscope.meanfield").predict
        found = predict(problem.model, tuple(batch[0].shape[1:]), closure=closure, data=batch[0])
    except (ImportError, AttributeError):
        return Theory(None, "the mean-field engine is not there")
    except NormscopeError as error:
        return Theory(None, str(error))
    if found.lambda_max is None or not 0 < found.lambda_max < math.inf:
        return Theory(None, f"the theory gives no eigenvalue ({found.regime})")
    return Theory(rule.largest_stable_rate(factor * float(found.lambda_max)), str(found.regime))


def _output_factor(problem: Problem, batch: Batch) -> float | None:
    """The largest eigenvalue of the loss's Hessian in the outputs, where it is known."""
    if problem.loss is squared_error:
        return 1.0
    if problem.loss is cross_entropy or isinstance(problem.loss, nn.CrossEntropyLoss):
        targets = batch[1]
        classes = targets.shape[1] if targets.is_floating_point() else int(targets.max()) + 1
        return 1 / classes
    return None
