"""`compare`: the same network under several normalizations."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from normscope.curvature import top_eigenvalue
from normscope.errors import ArgumentTypeError, InputError, NormscopeError, StateError
from normscope.interrupts import interrupt_safe
from normscope.layers.surgery.unfit import convert_in_mode, input_dimensions, unfit_norms
from normscope.learning_rate.advice import Advice
from normscope.learning_rate.advisor import advise
from normscope.learning_rate.comparison import AVERAGED, MODES, Compared, Comparison
from normscope.learning_rate.network_properties import constant_output_loss, gradient_growth
from normscope.learning_rate.setup import TrainingSetup, optimizer_or_sgd, refuse_step_hooks
from normscope.problem.batch import Batch
from normscope.problem.hooks import copy_gradient_hooks
from normscope.problem.loss import WholeLoss
from normscope.problem.modes import check_mode
from normscope.problem.problem import Data, Problem
from normscope.problem.references import first_reached
from normscope.problem.sharded import gather_shards
from normscope.progress import Progress, ProgressOption, callback_of, nested_progress
from normscope.progress_bar import shows_progress
from normscope.training.loop import Outcome
from normscope.validation import as_seed, check_bool
from normscope.warn import silenced

if TYPE_CHECKING:
    from normscope.problem.loss import Loss
    from normscope.training.optimizers import OptimizerFactory

USUAL_NORMS = ("none", "batch", "layer")
"""Compared by default."""
TOKEN_NORMS = ("none", "layer", "rms", "dyt")
"""Compared by default for models with norm layers over tokens: each token by itself."""


class UnfitNormError(InputError):
    """Kinds of normalization that do not fit a model.

    Args:
        reasons: why, by kind.
        fitting: the kinds that fit, of those asked for.
    """

    def __init__(self, reasons: Mapping[str, str], fitting: Sequence[str]) -> None:
        self.fitting = list(fitting)
        several = len(reasons) > 1
        which = f"norm{'s' * several} {' and '.join(reasons)}"
        reason = next(iter(reasons.values()))
        joint = ", or " if ";" in reason else "; "  # the reason may have its own remedy
        remedy = f"leave {'them' if several else 'it'} out: norms={self.fitting}"
        if not fitting:
            joint, remedy = ("", "") if ";" in reason else ("; ", "choose others")
        super().__init__(
            f"the {which} {'do' if several else 'does'} not fit the model: {reason}{joint}{remedy}."
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Unpickle as an InputError with the same message."""
        return InputError, (str(self),)


@interrupt_safe
@shows_progress("compare")
@gather_shards
def compare(
    model: nn.Module,
    loss: Loss | WholeLoss | str | None,
    data: Data,
    norms: Sequence[str] | None = None,
    *,
    momentum: float = 0.0,
    verify: bool = True,
    optimizer: OptimizerFactory | None = None,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    batch_size: int | None = None,
    mode: str = "as_is",
    steps: int = 200,
    seed: int = 0,
    progress: ProgressOption = None,
) -> Comparison:
    """Compare learning rates, curvature and training of a network under several normalizations.

    The networks have the weights of the model where they fit, and the gradient hooks of these
    weights. The model is left unchanged.

    Norm layers over (batch, tokens, features) are converted token by token; see
    `normscope.layers.convert`. Batch statistics of a causal language model, over all tokens,
    contain the tokens to be predicted: its losses with "batch" are not comparable with the others.

    Args:
        model: with norm layers, or where they can be inserted; see `normscope.layers.convert`.
        loss: as for `max_learning_rate`.
        data: as for `max_learning_rate`.
        norms: none, batch, noisy, l1, l2, linf, layer, group, rms, instance or dyt. None: none,
            batch and layer; for a model with norm layers over tokens, none, layer, rms and dyt.
        momentum: of SGD.
        verify: whether short runs verify the limit.
        optimizer: in place of SGD: a factory ``parameters -> Optimizer``, as for
            `max_learning_rate`.
        nesterov: whether SGD's momentum is Nesterov's.
        weight_decay: of SGD.
        batch_size: samples per step, drawn from data that is one batch.
        mode: as for `max_learning_rate`. With "as_is", new batch norm layers are in train mode
            unless they get the running statistics of an old one.
        steps: of the training at half the limit.
        seed: of the data order, dropout and noise.
        progress: receives an event as each part begins, as in `max_learning_rate`.

    Returns:
        The comparison; it prints as a table, and ``plot()`` draws one figure.

    Raises:
        InputError: if there is nothing to compare, or a norm does not fit the model; one forward
            pass of each checks this before anything is measured.
        StateError: if the loss uses parameters of the given model other than by its output, or if a
            parameter has a post-accumulate-grad hook.
        ArgumentTypeError: if the optimizer is an instance, which belongs to one model.
    """
    _check_arguments(optimizer, norms, steps)
    check_bool("verify", verify)
    seed = as_seed(seed)
    check_mode(mode)
    given = optimizer_or_sgd(optimizer, momentum, nesterov, weight_decay)
    rows, show = [], callback_of(progress)
    with torch.inference_mode(False):  # weights copied in that mode could not be trained
        asked = TrainingSetup(Problem(model, loss, data), given, batch_size, seed, mode)
        refuse_step_hooks(given, model)
        asked.warn_of_flags()
        _check_independent(asked)
        dimensions = _input_dimensions(asked)
        vectors = {name for name, number in dimensions.items() if number == 2}
        if norms is None:
            norms = TOKEN_NORMS if dimensions.keys() > vectors else USUAL_NORMS
        _check_norms(asked, norms, vectors)
        for number, norm in enumerate(norms):
            report = nested_progress(show, norm, number, len(norms), "normalizations")
            network = convert_in_mode(model, norm, mode, vectors)
            copy_gradient_hooks(model, network)
            setup = replace(asked, problem=Problem(network, loss, data))
            with setup.few_threads():
                advice = advise(setup, verify, report, objective="half_limit")
                report(Progress("training at half the limit"))
                rows.append(_compare_norm(norm, setup, advice, steps))
    return Comparison(tuple(rows), steps)


def _check_arguments(optimizer: object, norms: Sequence[str] | None, steps: int) -> None:
    if isinstance(optimizer, Optimizer):
        raise ArgumentTypeError(
            f"compare makes a network for each norm and an optimizer for each network, got an "
            f"optimizer of one; give a factory, such as functools.partial(torch.optim."
            f"{type(optimizer).__name__}, lr=0.001)."
        )
    if isinstance(norms, str) or (norms is not None and not norms):
        raise InputError("norms must be a list of at least one kind, such as ['none', 'batch'].")
    if steps < 1:
        raise InputError(f"steps must be at least 1, got {steps}.")


def _input_dimensions(setup: TrainingSetup) -> dict[str, int]:
    with setup.isolated():
        (batch,) = setup.batches(1)
        return input_dimensions(setup.problem, batch, setup.seed, setup.mode)


def _check_norms(setup: TrainingSetup, norms: Sequence[str], vectors: Collection[str]) -> None:
    """Reject norms that do not fit the model before anything is measured."""
    with setup.isolated():
        (batch,) = setup.batches(1)
        reasons = unfit_norms(setup.problem, norms, batch, setup.seed, setup.mode, vectors)
    if reasons:
        raise UnfitNormError(reasons, [norm for norm in norms if norm not in reasons])


def _check_independent(setup: TrainingSetup) -> None:
    """Reject a loss that uses the parameters of the given model: the networks have others."""
    problem = setup.problem
    with setup.isolated(), torch.enable_grad():
        (batch,) = setup.batches(1)
        model = convert_in_mode(problem.model, "none", setup.mode)
        converted = Problem(model, problem.loss, problem.data)
        loss = converted.loss_on(converted.prepare(batch))
    name = first_reached([loss], dict(problem.model.named_parameters()))
    if name is not None:
        raise StateError(
            f"the loss uses the parameter {name!r} of the given model, but compare trains one "
            "network for each norm; give a whole_loss, whose function receives the network."
        )


def _compare_norm(norm: str, setup: TrainingSetup, advice: Advice, steps: int) -> Compared:
    # as many batches as the final loss is a mean of
    problem, seed, batches = setup.problem, setup.seed, setup.batches(AVERAGED)
    with setup.training(advice.recommended) as optimizer:
        loop = setup.loop(optimizer)
        losses = np.array([step.loss for step in loop.run(steps)])
    diverged = loop.outcome is Outcome.DIVERGED
    kind = "ggn" if advice.curvature is None else advice.curvature.kind
    values = {mode: _eigenvalue(problem, batches[0], kind, mode, seed) for mode in MODES}
    growth = gradient_growth(problem, batches[0], seed, setup.mode)
    guess = constant_output_loss(problem, batches) if problem.has_outputs else None
    return Compared(norm, advice, values, growth, losses, diverged, guess)


def _eigenvalue(problem: Problem, batch: Batch, kind: str, mode: str, seed: int) -> float | None:
    with silenced():
        try:
            return top_eigenvalue(
                problem.model, problem.loss, [batch], kind, mode, tol=0.01, seed=seed, vectors=False
            ).value
        except NormscopeError:  # a layer does not have this mode
            return None
