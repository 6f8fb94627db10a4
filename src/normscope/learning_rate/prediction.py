"""The onset of instability, predicted before any run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from normscope.layers.kinds import norm_layers
from normscope.learning_rate.last_layer import LastLayer, belongs_to, last_layer
from normscope.learning_rate.last_layer_onset import last_layer_onset
from normscope.learning_rate.one_step import OneStep
from normscope.learning_rate.plateau import may_stand_still
from normscope.learning_rate.preconditioner import Preconditioner
from normscope.learning_rate.rehearsal import Rehearsal, rehearsed
from normscope.learning_rate.rules import UpdateRule
from normscope.problem.batch import Batch
from normscope.problem.evaluate import Evaluator
from normscope.problem.parameters import parameter_layout
from normscope.problem.problem import Problem

__all__ = ["Prediction", "predicted_onset"]

_CONSISTENT = 4.0  # between the onsets of the last layer before and after one step


@dataclass(frozen=True)
class Prediction:
    """A predicted onset.

    Args:
        rate: the learning rate.
        layer: name of the last layer whose training was simulated; None if the whole net was
            rehearsed.
        standing: the onset with the inputs of the last layer as they are now; None likewise.
        reason: how it was found, in a sentence.
    """

    rate: float
    layer: str | None
    standing: float | None
    reason: str

    def _repr_html_(self) -> str:
        from normscope.results.notebook import pairs_html

        return pairs_html(vars(self), "Onset of instability, predicted")


def predicted_onset(
    problem: Problem,
    batches: Sequence[Batch],
    rule: UpdateRule,
    bound: Callable[[], float],
    preconditioner: Preconditioner | None = None,
    seed: int = 0,
) -> Prediction:
    """Predict the onset of instability, at a fraction of what short runs cost.

    Weights that feed a norm layer are scale-invariant: a step too large lengthens them, which
    shrinks the next one. The last layer, which nothing normalizes, has no such brake, and its
    training alone, which needs no pass through the net, tells the onset of the whole. Where nothing
    is normalized, where one step upsets the last layer, and where there is no such layer or its
    outputs are all alike, all layers matter: the whole net is rehearsed in small. See
    docs/learning_rate.md for what both score.

    Args:
        problem: model, loss and data; nothing of it is changed.
        batches: a few of its batches; with several, the step comes from the last.
        rule: of the optimizer.
        bound: gives the rate that the curvature allows; asked only if a rehearsal breaks at none.
        preconditioner: of the optimizer; None for SGD.
        seed: of dropout and noise.

    Returns:
        The prediction.
    """
    found = _by_last_layer(problem, batches, rule, preconditioner, seed)
    if found is not None:
        return found
    given = preconditioner if preconditioner is not None and preconditioner.is_given else None
    return _by_rehearsal(rehearsed(problem, batches, rule, given, seed), bound)


def _by_last_layer(
    problem: Problem,
    batches: Sequence[Batch],
    rule: UpdateRule,
    preconditioner: Preconditioner | None,
    seed: int,
) -> Prediction | None:
    """The onset of the last layer, trained alone on features of a few batches after one step.

    The first step moves the features too: they are taken again after one, of all the other
    parameters, at the rate that they gave before. None if the last layer does not settle it.
    """
    one, few = (Problem(problem.model, problem.loss, list(each)) for each in (batches[:1], batches))
    evaluator = Evaluator(few, parameter_layout(problem.model), "train", seed)
    layer = last_layer(evaluator.on(one))
    if layer is None or not _may_decide(layer, evaluator):
        return None
    layer = last_layer(evaluator)
    standing = None if layer is None else last_layer_onset(layer, problem, rule)
    if layer is None or standing is None:
        return None
    step = OneStep(evaluator, batches[-1], layer, rule, preconditioner)
    moved = step.onset_after(standing, near=standing)
    onset = standing if moved is None else moved
    if standing > _CONSISTENT * onset:
        return None
    return Prediction(onset, layer.name, standing, _reason(layer))


def _may_decide(layer: LastLayer, evaluator: Evaluator) -> bool:
    """Whether nothing else is trained, or norm layers brake the rest and the outputs differ."""
    if all(belongs_to(layer, name) for name in evaluator.layout.names):
        return True
    if not norm_layers(evaluator.problem.model):
        return False
    outputs = layer.features[0] @ layer.weight.T  # but for a constant
    return not may_stand_still(evaluator.problem, outputs, layer.targets[0])


def _reason(layer: LastLayer) -> str:
    name = layer.name or "the model"
    count = f"{len(layer.features)} {'batches' if len(layer.features) > 1 else 'batch'}"
    return f"the last layer ({name}), trained alone on the features of {count} after one step"


def _by_rehearsal(found: Rehearsal, bound: Callable[[], float]) -> Prediction:
    if found.rate is None:
        return _unbroken(found, bound())
    ends = [f"stable at {found.low:.3g}"] * (found.low > 0) + [f"unstable at {found.high:.3g}"]
    where = ", once its loss falls" if found.beyond else ""
    reason = f"the whole net in a few steps on {found.samples} samples{where}: {', '.join(ends)}"
    return Prediction(found.rate, None, None, reason)


def _unbroken(found: Rehearsal, bound: float) -> Prediction:
    """Where no rate broke the loss, or none could be tried."""
    if found.low > bound:
        reason = f"the largest rate of a few, all stable in a few steps on {found.samples} samples"
        return Prediction(found.low, None, None, reason)
    tried = "a few steps on a few samples broke none" if found.low else "no rate could be tried"
    return Prediction(bound, None, None, f"the bound: {tried}")
