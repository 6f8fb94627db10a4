"""`compare`: the same network under several normalizations."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

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
from normscope.learning_rate.network_properties import constant_output_loss, gradient_growth
from normscope.learning_rate.setup import TrainingSetup, optimizer_or_sgd, refuse_step_hooks
from normscope.learning_rate.thresholds import STEPS
from normscope.problem.batch import Batch
from normscope.problem.hooks import copy_gradient_hooks
from normscope.problem.loss import WholeLoss
from normscope.problem.modes import check_mode
from normscope.problem.problem import Data, Problem
from normscope.problem.references import first_reached
from normscope.problem.sharded import gather_shards
from normscope.progress import Progress, ProgressOption, callback_of, nested_progress
from normscope.progress_bar import shows_progress
from normscope.text import Rendered, Table, join_words
from normscope.training.loop import Loop, Outcome, has_diverged
from normscope.validation import check_bool, check_integer
from normscope.warn import silenced

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from normscope.problem.loss import Loss
    from normscope.training.optimizers import OptimizerFactory

MODES = ("train", "frozen", "eval")
"""In which the curvature is compared."""
AVERAGED = 10
"""Losses at the end of a training whose mean is the final loss."""
USUAL_NORMS = ("none", "batch", "layer")
"""Compared by default."""
TOKEN_NORMS = ("none", "layer", "rms", "dyt")
"""Compared by default for models with norm layers over tokens: each token by itself."""
_MARK = "*"  # beside a limit that no runs enclose, or that a training has refuted


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


@dataclass(frozen=True, eq=False)
class Compared(Rendered):
    """One normalization.

    Args:
        norm: its kind.
        advice: on the learning rate.
        lambda_max: of the Gauss-Newton matrix by mode; None where a mode does not apply.
        growth: of the squared gradient per layer, backwards; None for a shallow network.
        losses: of a training at half the limit.
        diverged: whether it ended early.
        guessing_loss: of the best output that is the same for every sample; None if it is not
            known for the loss.
    """

    norm: str
    advice: Advice
    lambda_max: dict[str, float | None]
    growth: float | None
    losses: NDArray[np.float64]
    diverged: bool
    guessing_loss: float | None = None

    @property
    def final_loss(self) -> float:
        """The mean of the last ten losses (of all, if fewer); NaN after a divergence."""
        return math.nan if self.diverged else float(self.losses[-AVERAGED:].mean())

    @property
    def is_guessing(self) -> bool:
        """Whether the final loss is at least 95 % of the best constant output's."""
        guess = self.guessing_loss
        if not guess or self.diverged:  # zero if all targets are the same
            return False
        return self.final_loss >= 0.95 * guess

    @property
    def is_unstable(self) -> bool:
        """Whether the training at half the limit was unstable, by the definition of the limit.

        See `normscope.learning_rate.is_unstable`.
        """
        limit = self.advice.growth_limit or math.inf
        early = self.losses[:STEPS].tolist()
        return any(has_diverged(loss, early[0], limit) for loss in early)

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers and strings."""
        return {
            "norm": self.norm,
            "lambda_max": self.lambda_max,
            **self._training(),
            "guessing_loss": self.guessing_loss,
            "losses": self.losses.tolist(),
            "advice": self.advice.to_dict(),
        }

    def scalars(self) -> dict[str, Any]:
        """Return all scalars by name."""
        return {
            "norm": self.norm,
            **self.advice.scalars(),
            **{f"lambda_max_{mode}": value for mode, value in self.lambda_max.items()},
            **self._training(),
        }

    def _training(self) -> dict[str, Any]:
        return {
            "gradient_growth": self.growth,
            "final_loss": self.final_loss,
            "is_guessing": self.is_guessing,
            "is_unstable": self.is_unstable,
            "diverged": self.diverged,
        }

    def to_dataframe(self) -> pd.DataFrame:
        """Return one row of scalars."""
        return Comparison((self,), len(self.losses)).to_dataframe()

    def _table(self) -> Table:
        return Comparison((self,), len(self.losses))._table()


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Rendered):
    """The same net under several normalizations.

    The loss in the table is `Compared.final_loss`, a mean of the last ten.

    Args:
        rows: one for each normalization.
        steps: of the training at half the limit.
    """

    rows: tuple[Compared, ...]
    steps: int

    def __getitem__(self, norm: str) -> Compared:
        found = {row.norm: row for row in self.rows}
        if norm not in found:
            raise InputError(f"norm {norm!r} was not compared; choose from {', '.join(found)}.")
        return found[norm]

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers and strings."""
        norms = [row.to_dict() for row in self.rows]
        return {
            "headline": self.headline,
            "steps": self.steps,
            "norms": norms,
            "notes": self.notes,
        }

    @property
    def headline(self) -> str:
        """The largest limit, and how far the next is below it if their intervals are apart.

        Limits of which only one end is known, and those that a training has refuted, do not count.
        """
        known = [row for row in self.rows if _is_known(row)]
        unknown = [row.norm for row in self.rows if row not in known]
        without = f"; that of {join_words(unknown)} is not known" if unknown else ""
        if not known:
            return f"The limit of {join_words(unknown)} is not known"
        first, *others = sorted(known, key=lambda row: row.advice.limit, reverse=True)
        predicted = any(row.advice.verification is None for row in known)
        limit = f"{'predicted ' if predicted else ''}limit"
        largest = f"{first.norm}, {first.advice.limit:.3g}{_mark(first)}"
        if not others:
            return f"{limit.capitalize()}: {largest}{without}"
        low = first.advice.interval[0]
        close = [row.norm for row in others if row.advice.interval[1] >= low]
        if close:
            which = " and ".join(close) if len(close) < 3 else f"{len(close)} others"
            return f"Largest {limit}: {largest}; the interval of {which} overlaps{without}"
        ratio = first.advice.limit / others[0].advice.limit
        return (
            f"Largest {limit}: {largest}, {ratio:.2g} times that of {others[0].norm} "
            f"({others[0].advice.limit:.3g}{_mark(others[0])}){without}"
        )

    @property
    def notes(self) -> list[str]:
        """Caveats in full sentences; those on limits begin with the mark beside them."""
        unverified = [row.norm for row in self.rows if row.advice.verification is None]
        notes = []
        if unverified:
            whose = "" if len(unverified) == len(self.rows) else f" of {', '.join(unverified)}"
            notes.append(f"{_MARK} predicted: no run has verified the limit{whose}.")
        notes += [f"{_MARK} {_limit_note(row)}" for row in self.rows]
        notes += [_training_note(row, self.steps) for row in self.rows]
        notes += [_matrix_note(self.rows)]
        return [note for note in notes if note.strip(f" {_MARK}")]

    def to_dataframe(self) -> pd.DataFrame:
        """Return one row per norm, with the columns of its advice."""
        import pandas as pd

        return pd.DataFrame([row.scalars() for row in self.rows])

    def to_xarray(self) -> xr.Dataset:
        """Return rates, eigenvalues by mode and losses by step, all by norm."""
        import xarray as xr

        losses = np.full((len(self.rows), self.steps), np.nan)
        for row, line in zip(self.rows, losses, strict=True):
            line[: len(row.losses)] = row.losses
        rates = {
            name: ("norm", [_or_nan(getattr(row.advice, name)) for row in self.rows])
            for name in ("curvature_bound", "limit", "recommended", "predicted")
        }
        low, high = zip(*(row.advice.interval for row in self.rows), strict=True)
        values = [[row.lambda_max[mode] or math.nan for mode in MODES] for row in self.rows]
        return xr.Dataset(
            {
                **rates,
                "low": ("norm", list(low)),
                "high": ("norm", list(high)),
                "lambda_max": (("norm", "mode"), values),
                "gradient_growth": ("norm", [row.growth or math.nan for row in self.rows]),
                "loss": (("norm", "step"), losses),
            },
            coords={"norm": [row.norm for row in self.rows], "mode": list(MODES)},
        )

    def plot(self) -> Figure:
        """Draw one figure: learning rates, curvature in three modes, training at half the limit.

        Returns:
            The figure with its three panels; plots of one panel return its Axes, and ``.figure``
            is the figure of either.
        """
        from normscope.plots.learning_rate import comparison

        return comparison(self.to_xarray())

    def _table(self) -> Table:
        found = []
        for row in self.rows:
            numbers: dict[str, float | None] = {
                "curvature bound": row.advice.curvature_bound,
                "limit": row.advice.limit,
                "predicted": row.advice.predicted,
                **{f"λ {mode}": row.lambda_max[mode] for mode in MODES},
                "growth": row.growth,
                f"loss after {self.steps}": None if row.diverged else row.final_loss,
            }
            cells = {name: "-" if n is None else f"{n:.3g}" for name, n in numbers.items()}
            cells["limit"] += _mark(row)
            found.append({"norm": row.norm, **cells})
        return Table(found, self.headline, self.notes, numbers=[*found[0]][1:])


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _mark(row: Compared) -> str:
    """Return the mark of a limit that should not be trusted, or nothing."""
    return _MARK if row.is_unstable or not _is_enclosed(row.advice) else ""


def _is_known(row: Compared) -> bool:
    """Return whether the limit has two ends and the training at half of it was stable."""
    if row.is_unstable:
        return False
    is_predicted = row.advice.verification is None and row.advice.predicted is not None
    return is_predicted or _is_enclosed(row.advice)


def _is_enclosed(advice: Advice) -> bool:
    """Return whether the limit is between a rate that held and one that failed in short runs."""
    found = advice.verification
    return found is not None and found.ends[0] > 0 and math.isfinite(found.ends[1])


def _limit_note(row: Compared) -> str:
    found = row.advice.verification
    if found is None and row.advice.predicted is None:
        return f"{row.norm}: the limit is above this; no trial on a few samples was unstable."
    if found is None or _is_enclosed(row.advice):
        return ""
    if found.collapsed_first:
        return f"{row.norm}: the network collapsed at every rate tried; the limit is the lowest."
    if found.low == 0:
        return f"{row.norm}: no rate tried was stable; the limit is the lowest of them."
    if found.known_failure <= found.low:
        return f"{row.norm}: a run failed at {found.known_failure:.3g}, but most held up to this."
    return f"{row.norm}: no rate tried was unstable; the limit is the highest of them."


def _training_note(row: Compared, steps: int) -> str:
    if row.is_unstable:
        first, worst = row.losses[0], row.losses[:STEPS].max()
        rise = f"its loss rose to {worst:.3g}, {worst / first:.2g} times the first"
        done = "diverged" if row.diverged else f"was unstable ({rise})"
        # a verified limit is the median of several data orders
        whose = "" if row.advice.verification is None else " for this data order"
        return (
            f"{_MARK} {row.norm}: at half the limit the training {done}: the limit is too "
            f"high{whose}."
        )
    if row.diverged:  # after the steps in which an instability counts
        return f"{row.norm}: the training at half the limit diverged."
    if not row.is_guessing:
        return ""
    guess = row.guessing_loss or 0.0
    relation = "not below" if row.final_loss <= 1.05 * guess else "above"
    return (
        f"{row.norm}: after {steps} steps the loss, {row.final_loss:.3g}, is still {relation} that "
        f"of a constant output, {guess:.3g}."
    )


def _matrix_note(rows: Sequence[Compared]) -> str:
    """Return which matrix λ belongs to, if the rates do not follow from it."""
    rules = [row.advice.rule for row in rows if row.advice.curvature is not None]
    name = next((rule.name for rule in rules if not rule.is_exact), None)
    if name is None:
        return ""
    return (
        "λ is that of the loss alone; the curvature bound follows from the curvature over "
        f"{name}'s scale, the lambda_max of each advice, and not from λ."
    )


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
    check_integer("seed", seed)
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
        loop = Loop(
            problem,
            optimizer,
            setup.batch_size,
            seed,
            own_gradients_only=True,
            keeps_flags=True,
        )
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
