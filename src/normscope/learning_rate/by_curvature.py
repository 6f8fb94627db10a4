"""The onset of instability predicted without training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from normscope.curvature.batch import Batch
from normscope.curvature.evaluation import Evaluator
from normscope.curvature.known_loss import is_cross_entropy
from normscope.curvature.layout import parameter_layout
from normscope.curvature.problem import Problem
from normscope.learning_rate.last_layer import LastLayer, last_layer
from normscope.learning_rate.last_layer_onset import last_layer_onset
from normscope.learning_rate.preconditioner import Preconditioner
from normscope.learning_rate.rules import UpdateRule
from normscope.learning_rate.walk import gradient_on

__all__ = ["Prediction", "predicted_onset"]

# Onset over the bound without scale-invariant weights: the geometric mean over the eight
# cross-entropy cases of the first development set (docs/learning_rate.md).
_ENTROPY_ALLOWANCE = 3.0
_CONSISTENT = 4.0  # between the onsets before and after one step, and between curvatures


@dataclass(frozen=True)
class Prediction:
    """A predicted onset.

    Args:
        rate: the learning rate.
        layer: name of the last layer whose training was simulated; None if the bound was taken.
        standing: the onset with the inputs of the last layer as they are now.
        reason: how it was found, in a sentence.
    """

    rate: float
    layer: str | None
    standing: float | None
    reason: str

    def _repr_html_(self) -> str:
        from normscope.results.notebook import pairs_html

        return pairs_html(vars(self), "Onset of instability, predicted without training")


def predicted_onset(
    problem: Problem,
    batches: Sequence[Batch],
    rule: UpdateRule,
    bound: float,
    preconditioner: Preconditioner | None = None,
    seed: int = 0,
    sharpening: float = 1.0,
    beyond: float | None = None,
) -> Prediction:
    """Predict the onset of instability from a few forward passes and one gradient.

    Weights that feed a norm layer are scale-invariant: a step too large lengthens them, which
    shrinks the next one. The last layer, which nothing normalizes, has no such brake. Its training
    alone is a small problem on the features of a few batches, and is simulated at many learning
    rates. Since the first step moves the features too, it is simulated again on features after one
    step, of all the other parameters, at the learning rate that the first simulation found. That
    the last layer decides is a working assumption: see docs/learning_rate.md for where it fails.

    Args:
        problem: model, loss and data; nothing of it is changed.
        batches: a few of its batches; with several, the step comes from the last.
        rule: of the optimizer.
        bound: ``rule``'s bound from the curvature, for models whose last layer does not decide.
        preconditioner: of the optimizer; None for SGD.
        seed: of dropout and noise.
        sharpening: how much steeper the net is after a few steps than here.
        beyond: the bound where the net has left a plateau; None if it began on none. On a plateau
            the last layer is given the same features for every sample, and its training says
            nothing.

    Returns:
        The prediction.
    """
    if beyond is not None:
        return _by_bound(problem, beyond, "begins on a plateau, and this is the bound beyond")
    few = Problem(problem.model, problem.loss, list(batches))
    evaluator = Evaluator(few, parameter_layout(problem.model), "train", seed)
    layer = last_layer(evaluator)
    standing = None if layer is None else last_layer_onset(layer, problem, rule)
    if layer is None:
        why = "shows no linear last layer with trained weights of its own"
        return _by_bound(problem, bound, why)
    if standing is None:
        return _by_bound(problem, bound, "is stable at every rate in its last")
    moved = _after_one_step(evaluator, batches[-1], layer, standing, preconditioner)
    onset = None if moved is None else last_layer_onset(moved, problem, rule, near=standing)
    onset = standing if onset is None else onset
    if standing <= _CONSISTENT * onset and sharpening <= _CONSISTENT:
        return Prediction(onset, layer.name, standing, _reason(layer))
    return _between(problem, layer, standing, onset, bound)


def _reason(layer: LastLayer) -> str:
    name = layer.name or "the model"
    count = f"{len(layer.features)} {'batches' if len(layer.features) > 1 else 'batch'}"
    return f"the last layer ({name}), trained alone on the features of {count} after one step"


def _between(
    problem: Problem, layer: LastLayer, standing: float, onset: float, bound: float
) -> Prediction:
    """Between the last layer's onset and the bound.

    A few steps make other features altogether, or a net far steeper: the other layers matter as
    much as the last.
    """
    allowed = _allowance(problem) * bound
    reason = f"between {_reason(layer)} and {_allowance(problem):g} times the bound"
    return Prediction(math.sqrt(onset * allowed), layer.name, standing, reason)


def _after_one_step(
    evaluator: Evaluator,
    batch: Batch,
    layer: LastLayer,
    rate: float,
    preconditioner: Preconditioner | None,
) -> LastLayer | None:
    """The last layer as it is, on features of the other layers after one step."""
    _, gradient = gradient_on(evaluator, batch)
    direction = gradient if preconditioner is None else gradient / preconditioner.scale
    own = f"{layer.name}." if layer.name else ""
    steps = zip(evaluator.layout.names, evaluator.layout.split(direction), strict=True)
    others = {name: step for name, step in steps if not name.startswith(own)}
    for _ in range(4):  # a step out of the range of numbers is shortened
        moved = {name: evaluator.point[name] - rate * step for name, step in others.items()}
        found = last_layer(evaluator, moved)
        if found is not None and all(map(_is_finite, found.features)):
            return found
        rate /= 4
    return None


def _is_finite(tensor: Tensor) -> bool:
    return bool(tensor.isfinite().all())


def _by_bound(problem: Problem, bound: float, why: str) -> Prediction:
    factor = _allowance(problem)
    return Prediction(factor * bound, None, None, f"{factor:g} times the bound: the model {why}")


def _allowance(problem: Problem) -> float:
    return _ENTROPY_ALLOWANCE if is_cross_entropy(problem.loss) else 1.0  # it saturates
