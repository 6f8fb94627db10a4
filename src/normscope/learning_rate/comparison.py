"""`compare`: the same net under several normalizations, side by side."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.optim import Optimizer

from normscope.curvature import top_eigenvalue
from normscope.curvature.norm_fit import unfit_norms
from normscope.errors import ArgumentTypeError, InputError, NormscopeError, NormscopeWarning
from normscope.layers import convert
from normscope.learning_rate.advice import Advice
from normscope.learning_rate.advisor import max_learning_rate, recipe_of
from normscope.learning_rate.compared import LAST, MODES, Compared, Comparison
from normscope.learning_rate.copies import Workbench
from normscope.learning_rate.gradient_growth import gradient_growth
from normscope.learning_rate.guessing import guessing_loss
from normscope.learning_rate.steepest import Tell
from normscope.problem.batch import Batch
from normscope.problem.loss import WholeLoss
from normscope.problem.problem import Data, Problem
from normscope.training import fit

if TYPE_CHECKING:
    from normscope.problem.loss import Loss
    from normscope.training.optimizers import OptimizerFactory

__all__ = ["MODES", "Compared", "Comparison", "UnfitNormError", "compare"]


class UnfitNormError(InputError):
    """Kinds of normalization that a model cannot have.

    Args:
        reasons: why, by kind.
        fitting: the kinds that it can have, of those that were asked for.
    """

    def __init__(self, reasons: Mapping[str, str], fitting: Sequence[str]) -> None:
        self.fitting = list(fitting)
        several = len(reasons) > 1
        which = f"norm{'s' * several} {' and '.join(reasons)}"
        reason = next(iter(reasons.values()))
        joint = ", or" if ";" in reason else ";"  # it may have a remedy of its own
        remedy = f"leave {'them' if several else 'it'} out: norms={self.fitting}"
        super().__init__(
            f"the {which} {'do' if several else 'does'} not fit the model: {reason}{joint} "
            f"{remedy if fitting else 'choose others'}."
        )

    def __reduce__(self) -> tuple[object, ...]:
        """A message alone cannot make it again in another process."""
        return InputError, (str(self),)


def compare(
    model: nn.Module,
    loss: Loss | WholeLoss | str,
    data: Data,
    norms: Sequence[str] = ("none", "batch", "layer"),
    *,
    momentum: float = 0.0,
    verify: bool = True,
    optimizer: OptimizerFactory | None = None,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    batch_size: int | None = None,
    steps: int = 200,
    seed: int = 0,
    progress: Tell = lambda text: None,
) -> Comparison:
    """Compare learning rates, curvature and training of a net under several normalizations.

    The nets have the weights of the model where they fit. The model itself stays as it is.

    Args:
        model: with norm layers, or places for them; see `normscope.layers.convert`.
        loss: as for `max_learning_rate`.
        data: as for `max_learning_rate`.
        norms: none, batch, noisy, l1, l2, linf, layer or group.
        momentum: of SGD.
        verify: whether short runs find the onset.
        optimizer: in place of SGD: a factory ``parameters -> Optimizer``, as for
            `max_learning_rate`; an optimizer would belong to one model.
        nesterov: whether SGD's momentum is Nesterov's.
        weight_decay: of SGD.
        batch_size: samples per step, drawn from data that is one batch.
        steps: of the training at half the limit.
        seed: of the order of the data, dropout and noise.
        progress: called with a text as each part begins.

    Returns:
        The comparison; it prints as a table, and ``plot()`` draws one figure.

    Raises:
        InputError: if there is nothing to compare, or the model cannot have one of the norms;
            before anything is measured, one pass of each tells.
        ArgumentTypeError: if the optimizer is one already.
    """
    if isinstance(optimizer, Optimizer):
        raise ArgumentTypeError(
            f"compare makes a net for each norm and an optimizer for each net, got an optimizer of "
            f"one; give a factory, such as functools.partial(torch.optim."
            f"{type(optimizer).__name__}, lr=0.001)."
        )
    if isinstance(norms, str) or not norms:
        raise InputError("norms must be a list of at least one kind, such as ['none', 'batch'].")
    if steps < 1:
        raise InputError(f"steps must be at least 1, got {steps}.")
    recipe = recipe_of(optimizer, momentum, nesterov, weight_decay)
    rows = []
    with torch.inference_mode(False):  # weights copied in that mode could not be trained
        _check_norms(Workbench(Problem(model, loss, data), recipe, batch_size, seed), norms)
        for norm in norms:
            problem = Problem(convert(model, to=norm), loss, data)
            advice = max_learning_rate(
                problem.model,
                problem.loss,
                data,
                verify=verify,
                optimizer=recipe,
                batch_size=batch_size,
                seed=seed,
                progress=_prefixed(progress, norm),
            )
            progress(f"{norm}: training at half the limit")
            bench = Workbench(problem, recipe, batch_size, seed)
            rows.append(_compared(norm, bench, advice, steps))
    return Comparison(tuple(rows), steps)


def _check_norms(bench: Workbench, norms: Sequence[str]) -> None:
    """Refuse kinds that the model cannot have before anything is measured with the others."""
    with bench.untouched():
        (batch,) = bench.batches(1)
        reasons = unfit_norms(bench.problem, norms, batch, bench.seed)
    if reasons:
        raise UnfitNormError(reasons, [norm for norm in norms if norm not in reasons])


def _prefixed(tell: Tell, norm: str) -> Tell:
    return lambda text: tell(f"{norm}: {text}")


def _compared(norm: str, bench: Workbench, advice: Advice, steps: int) -> Compared:
    # the loss of guessing is that of as many batches as the final loss is a mean of
    problem, seed, batches = bench.problem, bench.seed, bench.batches(LAST)
    with bench.rehearsal(advice.recommended) as (copied, optimizer):
        run = fit(copied, optimizer, steps, bench.batch_size, seed)
    diverged = run.outcome.name == "DIVERGED"
    values = {mode: _eigenvalue(problem, batches[0], mode, seed) for mode in MODES}
    growth = gradient_growth(problem, batches[0], seed)
    guess = guessing_loss(problem, batches) if problem.has_outputs else None
    return Compared(norm, advice, values, growth, run.losses, diverged, guess)


def _eigenvalue(problem: Problem, batch: Batch, mode: str, seed: int) -> float | None:
    kind = "ggn" if problem.has_outputs else "hessian"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NormscopeWarning)
        try:
            return top_eigenvalue(
                problem.model, problem.loss, [batch], kind, mode, tol=0.01, seed=seed, vectors=False
            ).value
        except NormscopeError:  # a mode that a layer does not have
            return None
