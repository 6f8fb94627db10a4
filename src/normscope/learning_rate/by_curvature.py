"""The onset of instability predicted without training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from normscope.curvature.batch import Batch
from normscope.curvature.evaluation import Evaluator
from normscope.curvature.known_loss import is_cross_entropy
from normscope.curvature.layout import parameter_layout
from normscope.curvature.problem import Problem
from normscope.learning_rate.last_layer import LastLayer, last_layer
from normscope.learning_rate.last_layer_onset import last_layer_onset
from normscope.learning_rate.one_step import OneStep
from normscope.learning_rate.plateau import may_stand_still
from normscope.learning_rate.preconditioner import Preconditioner
from normscope.learning_rate.rules import UpdateRule
from normscope.learning_rate.steepest import Curvature

__all__ = ["Prediction", "predicted_onset"]

# Onset over the bound without scale-invariant weights: the geometric mean over the eight
# cross-entropy cases of the first development set (docs/learning_rate.md). For the other losses it
# only ends the range in which one step decides.
_ALLOWANCE = 3.0
_CONSISTENT = 4.0  # between the onsets before and after one step, and between curvatures
_ON_A_PLATEAU = "begins on a plateau, and this is the bound beyond"


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
    curvature: Callable[[], Curvature],
    preconditioner: Preconditioner | None = None,
    seed: int = 0,
) -> Prediction:
    """Predict the onset of instability from a few forward passes and one gradient.

    Weights that feed a norm layer are scale-invariant: a step too large lengthens them, which
    shrinks the next one. The last layer, which nothing normalizes, has no such brake. Its training
    alone is a small problem on the features of a few batches, and is simulated at many learning
    rates. Since the first step moves the features too, it is simulated again on features after one
    step, of all the other parameters, at the learning rate that the first simulation found. That
    the last layer decides is a working assumption: see docs/learning_rate.md for where it fails.
    Where it visibly does, the curvature of the whole net is asked for: if one step upsets the last
    layer, if the net begins on a plateau, or if there is no such layer.

    Args:
        problem: model, loss and data; nothing of it is changed.
        batches: a few of its batches; with several, the step comes from the last.
        rule: of the optimizer.
        curvature: gives the steepest curvature of the first steps; asked only if it is needed, and
            then perhaps more than once.
        preconditioner: of the optimizer; None for SGD.
        seed: of dropout and noise.

    Returns:
        The prediction.
    """
    few = Problem(problem.model, problem.loss, list(batches))
    evaluator = Evaluator(few, parameter_layout(problem.model), "train", seed)
    layer = last_layer(evaluator)
    if layer is None:
        why = "shows no linear last layer with trained weights of its own"
        hidden = "shows no output beside its whole_loss"
        return _by_bound(problem, rule, curvature(), why if problem.has_outputs else hidden)
    stands_still = may_stand_still(layer, problem)
    if stands_still and curvature().begins_flat:
        return _by_bound(problem, rule, curvature(), _ON_A_PLATEAU)
    standing = last_layer_onset(layer, problem, rule)
    if standing is None:
        return _by_bound(problem, rule, curvature(), "is stable at every rate in its last layer")
    step = OneStep(evaluator, batches[-1], layer, rule, preconditioner)
    moved = step.onset_after(standing, near=standing)
    onset = standing if moved is None else moved
    if standing <= _CONSISTENT * onset and not (
        stands_still and curvature().sharpening > _CONSISTENT
    ):
        return Prediction(onset, layer.name, standing, _reason(layer))
    return _upset(step, layer, standing, rule, curvature().bound(rule))


def _reason(layer: LastLayer) -> str:
    name = layer.name or "the model"
    count = f"{len(layer.features)} {'batches' if len(layer.features) > 1 else 'batch'}"
    return f"the last layer ({name}), trained alone on the features of {count} after one step"


def _upset(
    step: OneStep, layer: LastLayer, standing: float, rule: UpdateRule, bound: float
) -> Prediction:
    """Between the bound and a multiple of it.

    A few steps make other features altogether, or a net far steeper: the other layers matter as
    much as the last.
    """
    rate = step.largest_that_holds(bound, _allowance(rule) * bound)
    reason = (
        f"{rate / bound:.2g} times the bound, as far as one step leaves the last layer "
        f"({layer.name or 'the model'}) stable"
    )
    return Prediction(rate, layer.name, standing, reason)


def _by_bound(problem: Problem, rule: UpdateRule, curvature: Curvature, why: str) -> Prediction:
    """A multiple of the bound; of the one beyond the plateau for a net that begins on one."""
    factor = _allowance(rule) if is_cross_entropy(problem.loss) else 1.0  # it saturates
    beyond = curvature.bound_beyond(rule)
    bound, why = (curvature.bound(rule), why) if beyond is None else (beyond, _ON_A_PLATEAU)
    return Prediction(factor * bound, None, None, f"{factor:.2g} times the bound: the model {why}")


def _allowance(rule: UpdateRule) -> float:
    """How far beyond the bound a net may go that is no quadratic.

    On a quadratic, the heavy ball carries the bound by 1 + mu: its steps cancel in the steepest
    direction, step after step. That gain is lost where each step changes the curvature. Nesterov's
    rule and running means, whose gain is another, were not measured: they are given the same.
    """
    return _ALLOWANCE / (1 + rule.momentum)
