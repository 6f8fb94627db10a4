"""The mean-field bound on the learning rate, from the architecture alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normscope import meanfield
from normscope.errors import NoClosureError, NormscopeError
from normscope.learning_rate.network_properties import held_norm_layers
from normscope.learning_rate.update_rule import UpdateRule
from normscope.meanfield.softmax import output_curvature
from normscope.problem.batch import Batch
from normscope.problem.isolation import isolated
from normscope.problem.modes import set_flags, training_flags
from normscope.problem.problem import Problem
from normscope.problem.recognition import KnownLoss, is_cross_entropy, known_loss
from normscope.text import Rendered


@dataclass(frozen=True)
class MeanFieldBound(Rendered):
    """A bound on the learning rate from the architecture alone.

    Args:
        rate: the bound; None if the theory has none.
        reason: why not, or in which regime the network is.
        fisher: largest eigenvalue of the Fisher matrix, which is that of half the squared error.
        factor: by which the loss's Gauss-Newton matrix differs from it; also by a sum over the
            samples in place of their mean.
        frozen: names of weights that are not trained, which the theory counts all the same.
    """

    rate: float | None
    reason: str
    fisher: float | None = None
    factor: float | None = None
    frozen: tuple[str, ...] = ()


def mean_field_bound(
    problem: Problem,
    batch: Batch,
    rule: UpdateRule,
    closure: str = "train",
    mode: str = "train",
    one_rate: bool = True,
) -> MeanFieldBound:
    """Return the mean-field bound on the learning rate.

    The theory is about the squared error, whose Hessian in the outputs is the identity. For the
    cross-entropy the softmax at the initial outputs decides, of which the theory knows the moments:
    `normscope.meanfield.softmax.softmax_curvature`. Smoothed labels and probabilities in place of
    labels do not change that Hessian. All weights count as trained, frozen ones too.

    Reference: wei2018, Eq. (7).

    Args:
        problem: model and loss.
        batch: whose inputs give the moments of the input.
        rule: of the optimizer.
        closure: "train", "frozen" or "printed".
        mode: "train", "frozen", "eval" or "as_is". The theory has no running statistics.
        one_rate: whether all parameters are trained at one learning rate.

    Returns:
        The bound, or a rate of None with the reason.
    """
    if not rule.is_exact:
        return MeanFieldBound(None, f"the theory is about SGD, not {rule.name}")
    if not one_rate:
        return MeanFieldBound(None, "the theory has one constant learning rate for all weights")
    if not problem.has_outputs:
        return MeanFieldBound(None, "the theory needs a loss(output, target)")
    flags = training_flags(problem.model, mode)
    held = held_norm_layers(problem.model, flags)
    if held:
        reason = f"the theory has batch statistics, not the running ones of {held[0]!r}"
        return MeanFieldBound(None, f"{reason}, which is in eval mode")
    inputs, targets = problem.single_input(batch), problem.target_of(batch)
    if inputs is None or not isinstance(targets, Tensor):
        return MeanFieldBound(None, "the theory needs one tensor of inputs and one of targets")
    shape = _output_shape(problem.model, targets)
    known = _known(problem, targets, shape)
    if known is None:
        return MeanFieldBound(
            None,
            "the theory knows the squared error and the cross-entropy only, without class weights "
            "or ignored labels",
        )
    try:
        with isolated(problem.model):
            set_flags(problem.model, flags)  # which the theory reads
            found = meanfield.predict(
                problem.model, tuple(inputs.shape[1:]), closure=closure, data=inputs
            )
        if found.lambda_max is None or not 0 < found.lambda_max < math.inf:
            return MeanFieldBound(None, f"the theory gives no eigenvalue ({found.regime})")
        name = "squared_error" if known.kind == "squares" else known.kind
        factor = float(output_curvature(name, found, shape[1])) * known.scale * shape[0]
    except NoClosureError as error:
        return MeanFieldBound(None, error.what)  # without its remedy, which is to measure
    except NormscopeError as error:
        return MeanFieldBound(None, str(error))
    fisher = float(found.lambda_max)
    rate, frozen = rule.largest_stable_rate(factor * fisher), _frozen_weights(problem.model)
    return MeanFieldBound(rate, str(found.regime), fisher, factor, frozen)


def _frozen_weights(model: nn.Module) -> tuple[str, ...]:
    """Return weights that are not trained; biases, scales and shifts are not in the theory."""
    named = model.named_parameters()
    return tuple(name for name, each in named if each.ndim > 1 and not each.requires_grad)


def _known(problem: Problem, targets: Tensor, shape: tuple[int, ...]) -> KnownLoss | None:
    """Return the loss if the theory knows its Hessian in the outputs."""
    output = torch.empty(shape, device="meta")
    known = known_loss(problem.loss, output, targets)
    if known is None and is_cross_entropy(problem.loss) and targets.shape == shape:
        return known_loss(problem.loss, output, targets.argmax(1))  # probabilities
    return known


def _output_shape(model: nn.Module, targets: Tensor) -> tuple[int, ...]:
    """Return the shape of the outputs; a batch need not have labels of every class."""
    if targets.is_floating_point():
        return tuple(targets.shape) if targets.dim() > 1 else (len(targets), 1)
    heads = [module.out_features for module in model.modules() if isinstance(module, nn.Linear)]
    classes = max(int(targets.max()) + 1, heads[-1] if heads else 0)
    return (len(targets), classes, *targets.shape[1:])
