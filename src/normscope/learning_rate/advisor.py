"""`max_learning_rate`: how large a learning rate a model, loss and data allow."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from normscope.errors import InputError, StateError
from normscope.interrupts import interrupt_safe
from normscope.layers.kinds import kind_of, norm_layers
from normscope.learning_rate.advice import Advice
from normscope.learning_rate.around_step import (
    GroupRates,
    effective_batches,
    no_prediction,
    preconditioner_at,
    setup_notes,
)
from normscope.learning_rate.bound import MeasuredCurvature, measure_curvature
from normscope.learning_rate.choice import Choice, choose_rate
from normscope.learning_rate.learning_check import check_learning
from normscope.learning_rate.network_properties import (
    held_norm_layers,
    layer_scaled_by_gamma,
    scale_invariant_weights,
)
from normscope.learning_rate.option_trials import check_options, try_options
from normscope.learning_rate.prediction import (
    LimitPrediction,
    MeanFieldBound,
    mean_field_bound,
    predict_limit,
)
from normscope.learning_rate.sample_trials import trial_batch_count
from normscope.learning_rate.setup import (
    TrainingSetup,
    bind_all_parameters,
    first_step_rate,
    optimizer_or_sgd,
    refuse_step_hooks,
)
from normscope.learning_rate.stability import growth_limit
from normscope.learning_rate.summary import limit_notes, unlearned_note
from normscope.learning_rate.thresholds import (
    CAUTIOUS_SHARE,
    CHECK_KEPT,
    EFFORTS,
    FIRST_STEP,
    FIRST_STEP_DIVIDED,
    LAST_LAYER_STEPS,
    LATE_FACTOR,
    OBJECTIVES,
    PREDICTION_BATCHES,
    SHORT_MOMENTUM_MARGIN,
    STRONG_MOMENTUM,
    Effort,
)
from normscope.learning_rate.update_rule import Preconditioner, UpdateRule, rule_of
from normscope.learning_rate.verification import Verification, bracket_limit, verify_limit
from normscope.problem.batch import Batch, batch_count
from normscope.problem.hooks import has_backward_hooks, has_gradient_hooks
from normscope.problem.loss import WholeLoss
from normscope.problem.modes import check_mode, training_flags
from normscope.problem.precheck import check_data
from normscope.problem.problem import Data, Problem
from normscope.problem.recognition import is_cross_entropy, is_squared_error
from normscope.problem.sharded import gather_shards
from normscope.progress import Progress, ProgressCallback, ProgressOption, callback_of
from normscope.progress_bar import shows_progress
from normscope.registry import unknown_name
from normscope.validation import as_seed, as_tuple, check_bool

if TYPE_CHECKING:
    from normscope.problem.loss import Loss
    from normscope.training.common_rate import SchedulerFactory
    from normscope.training.optimizers import OptimizerFactory


@interrupt_safe
@shows_progress("learning rate")
@gather_shards
def max_learning_rate(
    model: nn.Module,
    loss: Loss | WholeLoss | str | None,
    data: Data,
    momentum: float = 0.0,
    verify: bool = True,
    *,
    optimizer: OptimizerFactory | Optimizer | None = None,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    batch_size: int | None = None,
    mode: str = "as_is",
    seed: int = 0,
    effort: str = "default",
    objective: str | None = None,
    scheduler: SchedulerFactory | None = None,
    clip_norm: float | None = None,
    accumulate: int = 1,
    warmups: Sequence[int] = (),
    weight_decays: Sequence[float] = (),
    progress: ProgressOption = None,
) -> Advice:
    r"""Find how large a learning rate training can take from the current weights.

    .. math:: \eta_{\mathrm{bound}} = 2 (1 + \mu) / \lambda_{\max}

    with the Gauss-Newton matrix of the loss as training sees it, batch by batch. The model, its
    gradients and running statistics, the optimizer and all random numbers are left unchanged.

    Modules are measured and trained with the ``training`` flags that they have, so that batch norm
    layers frozen by ``eval()`` stay frozen. The model's ``train()`` is not called: call it before,
    above all if the model overrides it.

    Reference: wei2018, Eq. (7).

    Args:
        model: any module whose parameters are on one device.
        loss: ``loss(output, target)``, the mean over samples; a registered name, such as "model"
            (or None) for the loss that the model itself returns; or a `whole_loss`.
        data: one batch, a list of batches or a DataLoader; for the forms of a batch see
            `normscope.Problem`.
        momentum: of SGD, from 0 up to 1.
        verify: whether short runs verify the limit, after which the model is restored; without, the
            answer costs matvecs and gradients of a few samples.
        optimizer: in place of SGD: an optimizer of the model, whose state is used, or a factory
            ``parameters -> Optimizer``. Its own learning rate does not matter; parameter groups
            with different rates keep their ratios, and the answer is the rate of the fastest one.
            Curvature bound and prediction know SGD, Adam, AdamW and RMSprop; any other is advised
            on by short runs alone.
        nesterov: whether SGD's momentum is Nesterov's.
        weight_decay: of SGD.
        batch_size: samples per step, drawn from data that is one batch; None: the batches of the
            data.
        mode: "as_is": each module by its own ``training`` flag; "train", "frozen" (batch
            statistics as constants) or "eval": all modules alike. A model in eval mode gets a
            warning with "as_is".
        seed: of the data order, dropout and noise.
        effort: "quick": a prediction and one bracket of it, about the time of 100 training steps;
            "default": that of about 400, with the choice of the recommended rate; "thorough": the
            limit to 5 % on up to three data orders if they agree, and a longer choice, up to 1600
            steps.
        objective: what ``recommended`` is: "fastest", slightly below the rate with the lowest loss
            after 50 steps (200 with ``effort="thorough"``) and at most half the limit; or
            "half_limit". None: "fastest"; "half_limit" with ``verify=False``;
            with ``effort="quick"`` a third of the limit or the lower end of its interval, a tenth
            with momentum; for Adam and similar optimizers a twentieth of the predicted limit.
        scheduler: makes a scheduler for an optimizer, as in ``lambda optimizer:
            LinearLR(optimizer, total_iters=10)``. The runs step it after every update; rates in the
            answer are those before the schedule, or ``max_lr`` for OneCycleLR and CyclicLR.
        clip_norm: largest norm of the gradient in the runs.
        accumulate: batches whose mean gradient makes one step; at most those of an epoch.
        warmups: numbers of steps in which the rate may grow linearly to the recommended one, 0 for
            none. Each is tried at that rate, and ``choice.warmup`` is the best; needs the objective
            "fastest".
        weight_decays: values to try likewise; ``choice.weight_decay`` is the best by training loss.
        progress: receives a `normscope.progress.Progress` event as each part begins; ``print``
            shows them. True shows a bar, and so does None in a notebook or console.

    Returns:
        The advice; it prints in three lines, and ``details()`` has all numbers and the reasons.

    Raises:
        InputError: if an argument does not fit, or the first loss is not positive.
        StateError: if the loss has no positive curvature, so that no learning rate is too large; if
            the loss or the model holds parameters in a list of its own; or if there are hooks on
            the optimizer's step or post-accumulate-grad hooks.

    >>> import torch
    >>> line = nn.Linear(1, 1, bias=False)
    >>> data = (torch.full((4, 1), 2.0), torch.full((4, 1), 20.0))
    >>> advice = max_learning_rate(line, "squared_error", data)
    >>> round(advice.bound, 3)  # 2 / 4
    0.5
    """
    check_bool("verify", verify)
    seed = as_seed(seed)
    show = callback_of(progress)
    check_mode(mode)
    plan, aim = _check_effort(effort), _check_objective(objective, verify, effort)
    given = optimizer_or_sgd(optimizer, momentum, nesterov, weight_decay)
    setup = TrainingSetup(
        Problem(model, loss, data),
        given,
        batch_size,
        seed,
        mode,
        scheduler,
        clip_norm,
        accumulate,
    )
    setup.check_step_options()
    options = as_tuple("warmups", warmups), as_tuple("weight_decays", weight_decays)
    check_options(setup, *options, aim)
    setup.warn_of_flags()
    return advise(setup, verify, show, plan, aim, options)


def _check_effort(name: str) -> Effort:
    if not isinstance(name, str) or name not in EFFORTS:
        raise unknown_name("effort", name, EFFORTS)
    return EFFORTS[name]


def _check_objective(name: str | None, verify: bool, effort: str) -> str:
    if name is None and verify:
        return "cautious" if effort == "quick" else "fastest"
    if name is None:
        return "half_limit"
    if name not in OBJECTIVES:
        raise unknown_name("objective", name, OBJECTIVES)
    if name == "fastest" and not verify:
        raise InputError(
            'objective="fastest" compares short runs, which verify=False leaves out; use '
            'verify=True or objective="half_limit".'
        )
    return name


def advise(
    setup: TrainingSetup,
    verify: bool,
    progress: ProgressCallback,
    effort: Effort = EFFORTS["thorough"],
    objective: str = "half_limit",
    options: tuple[Sequence[int], Sequence[float]] = ((), ()),
) -> Advice:
    """Return the advice for a training setup, which is left unchanged.

    Args:
        setup: model, loss, data, optimizer, batch size and seed.
        verify: whether short runs verify the limit.
        progress: receives an event as each part begins.
        effort: what may be spent.
        objective: of the recommended rate.
        options: warm-up lengths and weight decays to try at that rate.
    """
    begin = time.perf_counter()
    optimizer = bind_all_parameters(setup.optimizer, setup.problem.model)
    refuse_step_hooks(setup.optimizer, setup.problem.model)
    with torch.inference_mode(False), setup.few_threads(), setup.isolated():
        advice = _measure(setup, optimizer, verify, progress, effort)
        if objective == "fastest" and advice.verification is not None:
            advice = _with_choice(setup, advice, advice.verification, effort, options, progress)
        advice = _with_check(setup, replace(advice, objective=objective), progress)
    return replace(advice, seconds=time.perf_counter() - begin)


def _measure(
    setup: TrainingSetup,
    optimizer: Optimizer,
    verify: bool,
    progress: ProgressCallback,
    effort: Effort,
) -> Advice:
    """Return the advice without its time; the caller isolates the model."""
    problem, rule = setup.problem, rule_of(optimizer)
    batches, unjoined = effective_batches(setup, PREDICTION_BATCHES)
    losses = check_data(problem, batches, setup.batch_size, setup.seed, setup.mode)
    _check_first_loss(losses[0])
    plan = effort if verify else EFFORTS["thorough"]  # without runs nothing corrects the bound
    rates = GroupRates.of(setup, optimizer)
    preconditioner = preconditioner_at(setup, batches, optimizer, rule, rates)
    prediction, reason = None, unjoined or no_prediction(setup, rule, preconditioner, rates) or ""
    if reason:  # the search for the limit begins at the bound
        plan = replace(plan, curvature_tolerance=EFFORTS["thorough"].curvature_tolerance)

    @functools.cache
    def measure() -> MeasuredCurvature:
        return _curvature(setup, batches, rule, preconditioner, plan, progress)

    curvature = measure() if plan.curvature_batches and rule.unknown is None else None
    if not reason:
        progress(Progress("prediction"))
        prediction = _predict(setup, batches[0], rule, preconditioner, measure)
    verification = guess = None
    if verify:
        guess = _guess(setup, optimizer, rule, prediction, measure)
        # a plain SGD has no prediction only if gradients change: its bound may be far off then
        is_changed = rule.is_exact and setup.scheduler is None
        is_near = prediction is not None or setup.has_second_moment
        is_near |= effort.name == "quick" and not is_changed
        verification = _verify(setup, guess, progress, effort, rule.momentum, is_near)
    return Advice(
        rule=rule,
        curvature=curvature,
        prediction=prediction,
        verification=verification,
        batch_size=max(map(batch_count, batches)) * (setup.accumulate if unjoined else 1),
        seconds=0.0,
        effort=effort.name,
        curvature_reason=rule.unknown or ("" if curvature else _unmeasured(effort)),
        prediction_reason=reason,
        group_rates=rates.relative,
        notes=(*setup_notes(setup, rates, unjoined), *limit_notes(verification, effort)),
        has_second_moment=setup.has_second_moment,
        guess=guess,
        **_properties(setup, batches[0], rule, plan, rates.are_one),
    )


def _predict(
    setup: TrainingSetup,
    batch: Batch,
    rule: UpdateRule,
    preconditioner: Preconditioner | None,
    measure: Callable[[], MeasuredCurvature],
) -> LimitPrediction:
    """Return the predicted limit; the curvature is measured only if no trial run is unstable."""
    count = max(PREDICTION_BATCHES, trial_batch_count(batch))
    several, _ = effective_batches(setup, count)
    given = setup.problem, several, rule, lambda: measure().bound(rule), preconditioner
    return predict_limit(*given, setup.seed, setup.mode)


def _guess(
    setup: TrainingSetup,
    optimizer: Optimizer,
    rule: UpdateRule,
    prediction: LimitPrediction | None,
    measure: Callable[[], MeasuredCurvature],
) -> float:
    """Return the rate from which the runs look for the limit."""
    if prediction is not None:
        return prediction.rate
    if rule.unknown is None:
        return measure().bound(rule)
    share = FIRST_STEP_DIVIDED if setup.has_second_moment else FIRST_STEP
    return first_step_rate(setup, optimizer, share)


def _with_choice(
    setup: TrainingSetup,
    advice: Advice,
    found: Verification,
    effort: Effort,
    options: tuple[Sequence[int], Sequence[float]],
    progress: ProgressCallback,
) -> Advice:
    """Return the advice with the rate that trains best in short runs."""
    predicted = None if advice.prediction is None else advice.prediction.rate
    predicted = advice.guess if advice.has_second_moment else predicted
    choice = choose_rate(setup, found, effort, predicted, progress)
    if choice is not None:
        choice = _cautious_choice(choice, advice, effort)
        tried = try_options(setup, choice.rate, effort.choice_steps, *options, progress)
        choice = replace(choice, options=tried)
    notes = unlearned_note(choice, effort, advice.rule)
    return replace(advice, choice=choice, notes=(*advice.notes, *notes))


def _with_check(setup: TrainingSetup, advice: Advice, progress: ProgressCallback) -> Advice:
    """Return the advice with a run at the recommended rate, if weight decay may undo learning."""
    decay = None if advice.choice is None else advice.choice.weight_decay
    if not ((decay or setup.may_decay) and _weights_shrink(advice)):
        return advice
    progress(Progress("check", f"at {advice.recommended:.3g}"))
    check = check_learning(setup, advice.recommended, decay)
    return replace(advice, check=check, notes=(*advice.notes, *check.notes))


def _weights_shrink(advice: Advice) -> bool:
    """Return whether weights shrink so fast in short runs that nothing may be learned later."""
    choice, found = advice.choice, advice.verification
    if choice is not None:  # one that has learned nothing has its note
        return choice.learned and choice.kept < CHECK_KEPT
    runs = () if found is None else found.runs
    return any(run.kept < CHECK_KEPT for run in runs if not run.failed)


def _cautious_choice(choice: Choice, advice: Advice, effort: Effort) -> Choice:
    """Return the choice with a rate well below both that were tried, if neither lowered the loss.

    More than two rates extend far below the limit: their best stays.
    """
    if choice.learned or effort.total_steps:
        return choice
    # with a second moment the rates tried are far below the limit already
    share = CAUTIOUS_SHARE if advice.has_second_moment else advice.cautious_share
    return replace(choice, rate=min(choice.rate, choice.lowest * share))


def _unmeasured(effort: Effort) -> str:
    return f"not computed with effort={effort.name!r}"


def _curvature(
    setup: TrainingSetup,
    batches: list[Batch],
    rule: UpdateRule,
    preconditioner: Preconditioner | None,
    plan: Effort,
    progress: ProgressCallback,
) -> MeasuredCurvature:
    """Return the curvature, which must be positive."""
    few = batches[: plan.curvature_batches or 1]
    given = (setup.problem, few, rule, preconditioner, setup.seed, progress, setup.mode)
    found = measure_curvature(
        *given, later_steps=plan.later_steps, tolerance=plan.curvature_tolerance
    )
    _check_curvature(found, rule)
    return found


def _properties(
    setup: TrainingSetup, batch: Batch, rule: UpdateRule, plan: Effort, one_rate: bool
) -> dict[str, Any]:
    """Return what the explanation says of the network and its loss, by the names of `Advice`."""
    problem, seed, mode = setup.problem, setup.seed, setup.mode
    held = held_norm_layers(problem.model, training_flags(problem.model, mode))
    layers = norm_layers(problem.model).items()
    norms = {kind_of(layer) or "other" for name, layer in layers if name not in held}
    parameters = problem.model.parameters()
    found: dict[str, Any] = {
        "held": held,
        "norms": tuple(sorted(norms)),
        "mode": mode,
        "growth_limit": growth_limit(problem.loss),
        "calibrated": is_cross_entropy(problem.loss) or is_squared_error(problem.loss),
        "hooked": has_gradient_hooks(parameters) or has_backward_hooks(problem.model),
        "mean_field": MeanFieldBound(None, _unmeasured(plan)),
    }
    if plan.name != "quick":
        closure = "frozen" if mode == "frozen" else "train"
        found["mean_field"] = mean_field_bound(problem, batch, rule, closure, mode, one_rate)
    if plan.name == "thorough":
        found["invariant"] = scale_invariant_weights(problem, batch, seed, mode)
        found["scaled_layer"] = layer_scaled_by_gamma(problem, batch, seed, mode)
    return found


def _verify(
    setup: TrainingSetup,
    guess: float,
    progress: ProgressCallback,
    effort: Effort,
    momentum: float,
    is_near: bool,
) -> Verification:
    if effort.bisects:
        return verify_limit(setup, guess, progress, effort.limit_steps)
    is_quick = effort.name == "quick"
    last = 0 if is_quick else effort.choice_steps  # quick makes no choice
    found = bracket_limit(setup, guess, progress, effort.limit_steps, is_near, last)
    if is_quick and momentum >= STRONG_MOMENTUM:
        found = replace(found, short_margin=SHORT_MOMENTUM_MARGIN)
    if setup.orders_differ and 1 / (1 - momentum) > LAST_LAYER_STEPS:
        return replace(found, margin=LATE_FACTOR)
    return found


def _check_curvature(curvature: MeasuredCurvature, rule: UpdateRule) -> None:
    """Reject a loss without positive curvature, for which the bound is infinite."""
    if not math.isfinite(curvature.bound(rule)):
        raise StateError(
            "the loss has no positive curvature at these weights, which a bound on the learning "
            "rate needs; start from weights at which the loss depends on the parameters, and use "
            "a loss that is not linear in them."
        )


def _check_first_loss(first: float) -> None:
    """Reject a loss that is not positive: instability is a multiple of the first loss."""
    if first <= 0:
        raise InputError(
            f"the loss of the first batch is {first:.3g}; training counts as unstable beyond a "
            "multiple of it, so it must be above zero: add a constant that makes its least value "
            "zero, as in 1 - cosine_similarity."
        )
