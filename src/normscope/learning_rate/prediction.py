"""The stability limit predicted before any training run, and the bound of the mean-field theory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from normscope import meanfield
from normscope.errors import NoClosureError, NormscopeError
from normscope.layers.kinds import norm_layers
from normscope.learning_rate.last_layer import (
    LastLayer,
    breaks_late,
    last_layer,
    last_layer_limit,
)
from normscope.learning_rate.network_properties import held_norm_layers
from normscope.learning_rate.sample_trials import SampleTrials, run_sample_trials
from normscope.learning_rate.thresholds import (
    CONSISTENT,
    CONTRADICTED,
    FEATURE_SAMPLES,
    LAST_LAYER_STEPS,
    LATE_FACTOR,
    PREDICTION_BATCHES,
    PREDICTION_FACTOR,
    STEP_TRIES,
    TRIAL_FAR,
    TRIAL_SAMPLES,
)
from normscope.learning_rate.trial_run import gradient_on, may_be_on_plateau
from normscope.learning_rate.update_rule import Preconditioner, UpdateRule
from normscope.meanfield.output_curvature import output_curvature
from normscope.problem.batch import Batch, batch_count
from normscope.problem.evaluate import Evaluator
from normscope.problem.hooks import has_gradient_hooks
from normscope.problem.isolation import isolated
from normscope.problem.modes import set_flags, training_flags
from normscope.problem.parameters import parameter_layout
from normscope.problem.problem import Problem
from normscope.problem.recognition import KnownLoss, is_cross_entropy, known_loss
from normscope.text import Rendered


@dataclass(frozen=True)
class LimitPrediction(Rendered):
    """A predicted stability limit.

    Args:
        rate: the learning rate.
        layer: name of the last layer that was trained alone; None if trial runs of the whole
            network decided.
        standing: the limit with the current inputs of the last layer; None likewise.
        reason: how it was found, in a sentence.
        is_late: whether trial runs failed late, by what momentum and noise build up; the limit
            then depends on chance.
        is_lower_end: whether no trial run was unstable, so that the limit is above the rate, by an
            unknown factor.
    """

    rate: float
    layer: str | None
    standing: float | None
    reason: str
    is_late: bool = False
    is_lower_end: bool = False

    @property
    def factor(self) -> float:
        """The true limit is within this factor of the rate, either way, in nine of ten cases."""
        return LATE_FACTOR if self.is_late else PREDICTION_FACTOR

    def lowered_bound(self, bound: float) -> float:
        """Return a curvature bound, lowered where it is too high by this prediction.

        Curvature does not show what the noise of small batches and momentum build up.

        Args:
            bound: a learning rate.

        Returns:
            At most the rate over `factor` where trial runs failed late or the rate is below 80 % of
            the bound; else the bound.

        >>> LimitPrediction(1.0, None, None, "").lowered_bound(1.2)
        1.2
        >>> LimitPrediction(1.0, None, None, "").lowered_bound(2.0)
        0.4
        """
        if self.is_late or self.rate < CONTRADICTED * bound:
            return min(bound, self.rate / self.factor)
        return bound


def predict_limit(
    problem: Problem,
    batches: Sequence[Batch],
    rule: UpdateRule,
    bound: Callable[[], float],
    preconditioner: Preconditioner | None = None,
    seed: int = 0,
    mode: str = "train",
) -> LimitPrediction:
    """Predict the stability limit at a fraction of the cost of short runs.

    Weights that feed a norm layer are scale-invariant: a step that is too large lengthens them,
    which shrinks the next one. The last layer, which nothing normalizes, is not stabilized in this
    way, and training it alone gives the limit of the whole network. Trial runs of the whole network
    on a few samples decide where there are no norm layers or the last one is in eval mode, where
    one step makes the last layer unstable, where the model has no linear last layer or its outputs
    hardly differ, where the loss uses parameters beside the output, and where parameters have
    gradient hooks. They also decide where training is unstable late, by what noise and momentum
    build up, which the last layer alone does not show: on batches of at most 32 samples, with
    momentum above 0.93, and where the last layer itself breaks late. See docs/learning_rate.md for
    the accuracy of both.

    Args:
        problem: model, loss and data; not changed.
        batches: several of its batches; `trial_batch_count` says how many.
        rule: of the optimizer.
        bound: returns the curvature bound; called only if no trial run is unstable.
        preconditioner: of the optimizer; None for SGD.
        seed: of dropout and noise.
        mode: "train", "frozen", "eval" or "as_is".

    Returns:
        The prediction.
    """
    found = None
    if preconditioner is None or not preconditioner.has_group_rates:
        found = _from_last_layer(problem, batches, rule, preconditioner, seed, mode)
    if found is not None:
        return found
    given = preconditioner if preconditioner is not None and preconditioner.is_given else None
    return _from_trials(run_sample_trials(problem, batches, rule, given, seed, mode), bound)


def _from_last_layer(
    problem: Problem,
    batches: Sequence[Batch],
    rule: UpdateRule,
    preconditioner: Preconditioner | None,
    seed: int,
    mode: str,
) -> LimitPrediction | None:
    """Return the limit of the last layer, trained alone on its inputs after one step.

    The first step changes these inputs too: they are computed again after one step of all other
    parameters, at the limit found before. None if the last layer does not decide.
    """
    batches = batches[: max(PREDICTION_BATCHES, FEATURE_SAMPLES // batch_count(batches[0]))]
    one, few = (Problem(problem.model, problem.loss, list(each)) for each in (batches[:1], batches))
    evaluator = Evaluator(few, parameter_layout(problem.model), mode, seed)
    hooked = has_gradient_hooks(evaluator.parameters.values())
    if hooked or not evaluator.loss_is_of_output:
        return None  # training the last layer alone knows neither hooks nor other parameters
    layer = last_layer(evaluator.on(one))
    if layer is None or not _may_decide(layer, evaluator, rule):
        return None
    layer = last_layer(evaluator)
    standing = None if layer is None else last_layer_limit(layer, problem, rule)
    if layer is None or standing is None:
        return None
    is_alone = all(map(layer.owns, evaluator.layout.names))
    if not is_alone and breaks_late(layer, problem, rule, standing):
        return None
    moved = limit_after_one_step(evaluator, batches[-1], layer, rule, preconditioner, standing)
    limit = standing if moved is None else moved
    if standing > CONSISTENT * limit:
        return None
    count = f"{len(layer.features)} {'batches' if len(layer.features) > 1 else 'batch'}"
    reason = (
        f"the last layer ({layer.name or 'the model'}), trained alone on the features of {count} "
        "after one step"
    )
    return LimitPrediction(limit, layer.name, standing, reason)


def _may_decide(layer: LastLayer, evaluator: Evaluator, rule: UpdateRule) -> bool:
    """Return whether nothing else is trained, or the network is normalized and its outputs differ.

    The last norm layer counts, which normalizes what all weights before it do. In eval mode it
    multiplies by constants, and nothing stabilizes them. Batches so small that trial runs use them
    as they are leave it to these, and so does momentum that takes long to build up.
    """
    if all(map(layer.owns, evaluator.layout.names)):
        return True
    is_slow = not rule.corrected and rule.momentum > 1 - 1 / LAST_LAYER_STEPS
    if is_slow or len(layer.features[0]) <= TRIAL_SAMPLES:
        return False
    model = evaluator.problem.model
    last = next(reversed(norm_layers(model)), None)
    if last is None or last in held_norm_layers(model, evaluator.flags):
        return False
    outputs = layer.features[0] @ layer.weight.T  # up to a constant
    return not may_be_on_plateau(evaluator.problem, outputs, layer.targets[0])


def limit_after_one_step(
    evaluator: Evaluator,
    batch: Batch,
    layer: LastLayer,
    rule: UpdateRule,
    preconditioner: Preconditioner | None,
    rate: float,
) -> float | None:
    """Return the last layer's limit on its inputs after one step of all other parameters.

    The step has no weight decay. If it makes the inputs non-finite, it is repeated at a quarter of
    the rate, three times at most.

    Args:
        evaluator: model, loss and a few batches; not changed.
        batch: whose gradient is used.
        layer: the last layer, which does not move.
        rule: of the optimizer.
        preconditioner: of the optimizer; None for SGD.
        rate: of the step, near the limit.

    Returns:
        The limit; zero if no step gives finite inputs, None if there is no limit.
    """
    direction = gradient_on(evaluator, batch)
    if preconditioner is not None:
        direction = direction / preconditioner.scale
    if rule.nesterov:  # its first step includes its own momentum
        direction = (1 + rule.momentum) * direction
    steps = zip(evaluator.layout.names, evaluator.layout.split(direction), strict=True)
    others = {name: step for name, step in steps if not layer.owns(name)}
    point = evaluator.point
    for shortened in range(STEP_TRIES):
        moved = {
            name: (point[name] - rate / TRIAL_FAR**shortened * step).to(point[name].dtype)
            for name, step in others.items()
        }
        after = last_layer(evaluator, moved)
        if after is not None and all(bool(each.isfinite().all()) for each in after.features):
            return last_layer_limit(after, evaluator.problem, rule, near=rate)
    return 0.0


def _from_trials(found: SampleTrials, bound: Callable[[], float]) -> LimitPrediction:
    steps = f"in a few steps on {found.samples} samples"
    if found.rate is not None:
        ends = [f"stable at {found.low:.3g}"] * (found.low > 0) + [f"unstable at {found.high:.3g}"]
        where = ", once its loss decreases" if found.beyond else ""
        reason = f"the whole network {steps}{where}: {', '.join(ends)}"
        if found.reached < 1:
            reason += f"; lowered to {found.reached:.0%} for what momentum builds up in 100 steps"
        return LimitPrediction(found.rate, None, None, reason, found.is_late)
    limit = bound()
    if found.low > limit:
        reason = f"no rate up to {found.low:.3g} was unstable {steps}; the limit is above"
        return LimitPrediction(found.low, None, None, reason, is_lower_end=True)
    tried = f"no rate was unstable {steps}" if found.low else "none could be tried"
    return LimitPrediction(limit, None, None, f"the bound: {tried}")


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
    `normscope.meanfield.output_curvature.softmax_curvature`. Smoothed labels and probabilities in
    place of labels do not change that Hessian. All weights count as trained, frozen ones too.

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
    held = held_norm_layers(problem.model, training_flags(problem.model, mode))
    if held:
        reason = f"the theory has batch statistics, not the running ones of {held[0]!r}"
        return MeanFieldBound(None, f"{reason}, which is in eval mode")
    inputs, targets = problem.single_input(batch), problem.target_of(batch)
    if inputs is None or not isinstance(targets, Tensor):
        return MeanFieldBound(None, "the theory needs one tensor of inputs and one of targets")
    found = _predicted_curvature(problem, inputs, targets, closure, mode)
    if found.fisher is None or found.factor is None:
        return found
    return replace(found, rate=rule.largest_stable_rate(found.factor * found.fisher))


def _predicted_curvature(
    problem: Problem, inputs: Tensor, targets: Tensor, closure: str, mode: str
) -> MeanFieldBound:
    """Return the predicted eigenvalue and the factor of the loss, without a rate; or why not."""
    shape = _output_shape(problem.model, targets)
    known = _known(problem, targets, shape)
    if known is None:
        only = "the squared error and the cross-entropy only"
        return MeanFieldBound(
            None, f"the theory knows {only}, without class weights or ignored labels"
        )
    try:
        with isolated(problem.model):
            set_flags(problem.model, training_flags(problem.model, mode))  # which the theory reads
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
    frozen = _frozen_weights(problem.model)
    return MeanFieldBound(None, str(found.regime), float(found.lambda_max), factor, frozen)


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
