"""A model, a loss and data, and their evaluation without side effects."""

from normscope.problem.batch import (
    Batch,
    batch_count,
    check_filled,
    copy_batch,
    has_samples,
    join_batches,
    map_tensors,
    move_batch,
    rows,
    sample_count,
    split_batch,
    tensors_of,
)
from normscope.problem.error_messages import FitCheck, misfit_error, require_module
from normscope.problem.evaluate import Evaluation, Evaluator
from normscope.problem.isolation import Isolation, RandomGenerators, copy_tensors, isolated
from normscope.problem.loss import (
    LOSSES,
    Loss,
    WholeLoss,
    accuracy,
    cross_entropy,
    squared_error,
    whole_loss,
)
from normscope.problem.loss_state import loss_modules, stateless_loss
from normscope.problem.model_call import check_pair
from normscope.problem.modes import MODES, in_mode, is_batch_norm
from normscope.problem.parameters import ParameterLayout, Parameters, parameter_layout
from normscope.problem.precheck import check_data, locate_errors, try_batches
from normscope.problem.problem import Data, Problem
from normscope.problem.recognition import (
    KnownLoss,
    batch_weight,
    is_cross_entropy,
    is_squared_error,
    known_loss,
)

__all__ = [
    "LOSSES",
    "MODES",
    "Batch",
    "Data",
    "Evaluation",
    "Evaluator",
    "FitCheck",
    "Isolation",
    "KnownLoss",
    "Loss",
    "ParameterLayout",
    "Parameters",
    "Problem",
    "RandomGenerators",
    "WholeLoss",
    "accuracy",
    "batch_count",
    "batch_weight",
    "check_data",
    "check_filled",
    "check_pair",
    "copy_batch",
    "copy_tensors",
    "cross_entropy",
    "has_samples",
    "in_mode",
    "is_batch_norm",
    "is_cross_entropy",
    "is_squared_error",
    "isolated",
    "join_batches",
    "known_loss",
    "locate_errors",
    "loss_modules",
    "map_tensors",
    "misfit_error",
    "move_batch",
    "parameter_layout",
    "require_module",
    "rows",
    "sample_count",
    "split_batch",
    "squared_error",
    "stateless_loss",
    "tensors_of",
    "try_batches",
    "whole_loss",
]
