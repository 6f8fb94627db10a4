"""`max_learning_rate`: how large a learning rate a model, loss and data can take."""

from __future__ import annotations

import functools
import math
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from normscope.errors import InputError, StateError
from normscope.layers.kinds import kind_of, norm_layers
from normscope.learning_rate.advice import Advice
from normscope.learning_rate.copies import Workbench, checked_optimizer
from normscope.learning_rate.invariance import scale_invariant_weights
from normscope.learning_rate.onset import growth_limit
from normscope.learning_rate.preconditioner import Preconditioner, preconditioner_of
from normscope.learning_rate.prediction import predicted_onset
from normscope.learning_rate.rules import UpdateRule, rule_of
from normscope.learning_rate.steepest import Tell, steepest_curvature
from normscope.learning_rate.theory import mean_field_bound
from normscope.learning_rate.verification import verified_onset
from normscope.learning_rate.walk import Walks, gradient_on
from normscope.problem.batch import Batch, sample_count
from normscope.problem.evaluate import Evaluator
from normscope.problem.loss import WholeLoss
from normscope.problem.parameters import parameter_layout
from normscope.problem.precheck import look_over
from normscope.problem.problem import Data, Problem
from normscope.training.optimizers import sgd
from normscope.validation import check_bool, check_callback, check_integer

if TYPE_CHECKING:
    from normscope.problem.loss import Loss
    from normscope.training.optimizers import OptimizerFactory

__all__ = ["max_learning_rate", "recipe_of"]

_CURVATURE_BATCHES = 3
_FEATURE_BATCHES = 4


def max_learning_rate(
    model: nn.Module,
    loss: Loss | WholeLoss | str,
    data: Data,
    momentum: float = 0.0,
    verify: bool = True,
    *,
    optimizer: OptimizerFactory | Optimizer | None = None,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    batch_size: int | None = None,
    seed: int = 0,
    progress: Tell | None = None,
) -> Advice:
    r"""How large a learning rate training can take from the present weights on.

    .. math:: \eta_{\mathrm{bound}} = 2 (1 + \mu) / \lambda_{\max}

    with the Gauss-Newton matrix of the loss in train mode, batch by batch. The model, its
    gradients and running statistics, the optimizer and all random numbers stay as they are.

    Reference: wei2018, Eq. (7).

    Args:
        model: any module whose parameters are on one device.
        loss: ``loss(output, target)``, the mean over samples; a registered name; or a `whole_loss`.
        data: one batch ``(inputs, targets)``, a list of batches or a DataLoader.
        momentum: of SGD, from 0 up to 1.
        verify: whether short runs on copies find the onset, at most 600 steps in all; without, the
            answer takes curvature products and gradients of a few samples.
        optimizer: in place of SGD: an optimizer of the model, whose state is taken into account,
            or a factory ``parameters -> Optimizer``; SGD, Adam, AdamW or RMSprop. Its own learning
            rate does not matter.
        nesterov: whether SGD's momentum is Nesterov's.
        weight_decay: of SGD.
        batch_size: samples per step, drawn from data that is one batch; None: the batches as the
            data has them.
        seed: of the order of the data, dropout and noise.
        progress: called with a text as each part begins.

    Returns:
        The advice; it prints as a table.

    Raises:
        InputError: if an argument does not fit, or the first loss is not above zero.
        StateError: if the loss is flat, so that no learning rate is too large.

    >>> import torch
    >>> line = nn.Linear(1, 1, bias=False)
    >>> data = (torch.full((4, 1), 2.0), torch.full((4, 1), 20.0))
    >>> advice = max_learning_rate(line, "squared_error", data)
    >>> round(advice.bound, 3)  # 2 / 4
    0.5
    """
    begin = time.perf_counter()
    check_bool("verify", verify)
    check_integer("seed", seed)
    check_callback("progress", progress)
    problem = Problem(model, loss, data)
    recipe = recipe_of(optimizer, momentum, nesterov, weight_decay)
    own = checked_optimizer(recipe, model)
    bench = Workbench(problem, recipe, batch_size, seed)
    with torch.inference_mode(False), bench.untouched():  # which turns gradients on, too
        parts = _answered(bench, own, rule_of(own), verify, progress or _silently)
    return Advice(**parts, norms=_norms(model), seconds=time.perf_counter() - begin)


def _silently(text: str) -> None:
    """Tell nobody of a part that begins."""


def _answered(
    bench: Workbench, optimizer: Optimizer, rule: UpdateRule, verify: bool, tell: Tell
) -> dict[str, Any]:
    """The parts of the advice, one after another."""
    problem, seed = bench.problem, bench.seed
    batches = bench.batches(_FEATURE_BATCHES)
    look_over(problem, batches, bench.batch_size, seed)
    _check_positive(problem, batches[0], seed)
    preconditioner = _preconditioner(problem, batches, optimizer, rule, seed)
    few = batches[:_CURVATURE_BATCHES]
    curvature = steepest_curvature(problem, few, rule, preconditioner, seed, tell)
    if not math.isfinite(curvature.bound(rule)):
        raise StateError(
            "the loss curves upwards in no direction at these weights, so that no learning rate is "
            "too large; start from weights at which the loss depends on the parameters."
        )
    tell("prediction")
    allowed = functools.partial(curvature.bound, rule)
    prediction = predicted_onset(problem, batches, rule, allowed, preconditioner, seed)
    return {
        "rule": rule,
        "curvature": curvature,
        "prediction": prediction,
        "verification": verified_onset(bench, prediction.rate, tell) if verify else None,
        "mean_field": mean_field_bound(problem, batches[0], rule),
        "invariant": scale_invariant_weights(problem, batches[0], seed),
        "batch_size": max(map(sample_count, batches)),
        "growth_limit": growth_limit(problem.loss),
    }


def _check_positive(problem: Problem, batch: Batch, seed: int) -> None:
    """Refuse a loss by a multiple of whose first value no instability can be told."""
    first = Walks(problem, [batch], seed=seed).first_losses[0]
    if first <= 0:
        raise InputError(
            f"the loss of the first batch is {first:.3g}; training counts as unstable beyond a "
            "multiple of it, so it must be above zero: add a constant that makes its least value "
            "zero, as in 1 - cosine_similarity."
        )


def recipe_of(
    optimizer: OptimizerFactory | Optimizer | None,
    momentum: float,
    nesterov: bool,
    weight_decay: float,
) -> OptimizerFactory | Optimizer:
    """The optimizer that is given, or SGD.

    Args:
        optimizer: of the user's; None for SGD.
        momentum: of SGD.
        nesterov: whether it is Nesterov's.
        weight_decay: of SGD.

    Returns:
        An optimizer or a factory of one.

    Raises:
        InputError: if options of SGD are given beside an optimizer.
    """
    if optimizer is None:
        return sgd(1.0, momentum, nesterov, weight_decay)
    if momentum or nesterov or weight_decay:
        raise InputError(
            "momentum, nesterov and weight_decay belong to SGD without an optimizer; an optimizer "
            "of your own carries its own: leave them out."
        )
    return optimizer


def _preconditioner(
    problem: Problem, batches: list[Batch], optimizer: Optimizer, rule: UpdateRule, seed: int
) -> Preconditioner | None:
    if rule.is_exact:
        return None
    layout = parameter_layout(problem.model)
    evaluator = Evaluator(problem, layout, "train", seed)
    gradients: list[Tensor] = [gradient_on(evaluator, batch)[1] for batch in batches]
    parameters = dict(problem.model.named_parameters())
    return preconditioner_of(optimizer, rule, parameters, layout, gradients)


def _norms(model: nn.Module) -> tuple[str, ...]:
    kinds = {kind_of(layer) or "other" for layer in norm_layers(model).values()}
    return tuple(sorted(kinds))
