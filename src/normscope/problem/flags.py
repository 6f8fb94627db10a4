"""Warn if the ``training`` flags, which mode "as_is" follows, may differ in training."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from normscope.errors import NormscopeError
from normscope.problem.batch import Batch
from normscope.problem.evaluate import Evaluator
from normscope.problem.isolation import isolated
from normscope.problem.modes import EVAL_MODE_MESSAGE, is_in_eval_mode
from normscope.problem.parameters import parameter_layout
from normscope.problem.problem import Problem
from normscope.warn import warn


def warn_of_flags(problem: Problem, draw: Callable[[], Batch], seed: int) -> None:
    """Warn about a model in eval mode, and about one whose ``train()`` would set other flags.

    A model without any module in train mode is evaluated in both modes: there is no warning if the
    losses are equal, as without batch normalization and dropout.

    Args:
        problem: model and loss; neither is changed.
        draw: returns a batch; called only if it is needed.
        seed: of dropout and noise.
    """
    message = None
    if is_in_eval_mode(problem.model):
        if _mode_matters(problem, draw(), seed):
            message = EVAL_MODE_MESSAGE
    else:
        changed = _changed_by_train(problem.model)
        if changed is not None:
            message = (
                f"the model is measured as it is, but its train() method would change {changed}; "
                "call model.train() first if training does."
            )
    if message is not None:
        warn(message)


def _mode_matters(problem: Problem, batch: Batch, seed: int) -> bool:
    """Return whether train mode gives another loss than eval mode, or none."""
    layout, placed = parameter_layout(problem.model), problem.prepare(batch)
    try:
        evaluated = Evaluator(problem, layout, "eval", seed)(placed).loss
    except NormscopeError:  # the measurement raises it too
        return False
    try:
        trained = Evaluator(problem, layout, "train", seed)(placed).loss
    except NormscopeError:  # such as batch statistics of one sample
        return True
    return not torch.equal(evaluated, trained)


def _changed_by_train(model: nn.Module) -> str | None:
    """Return the first flag that the model's own ``train()`` would change, in words."""
    modules, parameters = dict(model.named_modules()), dict(model.named_parameters())
    if all(_has_plain_train(module) for module in modules.values()):
        return None
    flags = {name: module.training for name, module in modules.items()}
    trained = {name: parameter.requires_grad for name, parameter in parameters.items()}
    with isolated(model):
        try:
            model.train()
            for name, module in modules.items():
                if module.training != flags[name]:
                    return f"the training flag of {name!r}" if name else "its own training flag"
            for name, parameter in parameters.items():
                if parameter.requires_grad != trained[name]:
                    return f"requires_grad of {name!r}"
        finally:
            for name, parameter in parameters.items():
                parameter.requires_grad_(trained[name])
    return None


def _has_plain_train(module: nn.Module) -> bool:
    return type(module).train is nn.Module.train and "train" not in module.__dict__
