"""What everything works on: a model, a loss and data, and the only way to touch a model."""

from normscope.problem.loss import (
    LOSSES,
    Loss,
    WholeLoss,
    accuracy,
    cross_entropy,
    squared_error,
    whole_loss,
)
from normscope.problem.problem import Data, Problem

__all__ = [
    "LOSSES",
    "Data",
    "Loss",
    "Problem",
    "WholeLoss",
    "accuracy",
    "cross_entropy",
    "squared_error",
    "whole_loss",
]
