"""Warm-up lengths and weight decays, compared by short trials at one learning rate."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from normscope.errors import InputError
from normscope.learning_rate.setup import TrainingSetup
from normscope.learning_rate.stability import ShortRun
from normscope.learning_rate.thresholds import CHOICE_AVERAGED
from normscope.progress import Progress, ProgressCallback, ignore_progress
from normscope.text import Rendered
from normscope.training.optimizers import bind_optimizer
from normscope.validation import check_integer, check_number


@dataclass(frozen=True)
class OptionTrial(Rendered):
    """One value of an option that was tried.

    Args:
        option: "warmup" or "weight_decay".
        value: steps in which the rate grows linearly, or the weight decay.
        steps: after which the loss was compared.
        loss: the mean over the last quarter of these steps; infinite if the run failed.
        chosen: whether it is recommended.
    """

    option: str
    value: float
    steps: int
    loss: float
    chosen: bool = False


def check_options(
    setup: TrainingSetup, warmups: Sequence[int], decays: Sequence[float], objective: str
) -> None:
    """Raise an error unless the values can be tried.

    Args:
        setup: optimizer and schedule.
        warmups: lengths in steps.
        decays: weight decays.
        objective: of the recommended rate, at which they are tried.

    Raises:
        ArgumentTypeError: if a value is not a number.
        InputError: if a value is out of range, no rate is compared, the optimizer has no weight
            decay, or a schedule makes warm-ups of another kind.
    """
    if (warmups or decays) and objective != "fastest":
        raise InputError(
            'warmups and weight_decays are tried at the rate of objective="fastest"; use that '
            "objective, or leave them out."
        )
    for length in warmups:
        check_integer("a warm-up", length)
        if length < 0:
            raise InputError(f"warmups are numbers of steps, 0 for none; got {length}.")
    if warmups and setup.scheduler is not None:
        raise InputError("warmups and scheduler cannot be combined; make the warm-up a schedule.")
    for decay in decays:
        check_number("a weight decay", decay)
        if isinstance(decay, bool) or not 0 <= decay < math.inf:
            raise InputError(f"weight_decays must be finite and not negative, got {decay}.")
    groups = bind_optimizer(setup.optimizer, setup.problem.model).param_groups
    if decays and not all("weight_decay" in group for group in groups):
        raise InputError("the optimizer has no weight decay to try; leave weight_decays out.")


def try_options(
    setup: TrainingSetup,
    rate: float,
    steps: int,
    warmups: Sequence[int] = (),
    decays: Sequence[float] = (),
    progress: ProgressCallback = ignore_progress,
) -> tuple[OptionTrial, ...]:
    """Compare warm-up lengths, then weight decays, by short trials at a learning rate.

    The usual value, no warm-up or the optimizer's own weight decay, is tried too. It stays unless
    another one has a loss that is lower by more than the standard error of the difference.

    Args:
        setup: the problem with its optimizer and batch size.
        rate: the learning rate.
        steps: of each trial; at least twice the longest warm-up is taken.
        warmups: lengths in steps.
        decays: weight decays.
        progress: receives an event before each run.

    Returns:
        All trials, those of one option together.
    """
    length = max([steps, *(2 * each for each in warmups)])
    trial = _Trial(setup, rate, length, progress)
    found: list[OptionTrial] = []
    if warmups:
        lengths = list(dict.fromkeys([0, *warmups]))
        found += _compare("warmup", lengths, lambda value: trial.run(warmup=int(value)), length)
    if decays:
        values = list(dict.fromkeys([trial.own_decay(), *decays]))
        found += _compare("weight_decay", values, lambda value: trial.run(decay=value), length)
    return tuple(found)


def _compare(
    option: str, values: Sequence[float], run: Callable[[float], ShortRun], steps: int
) -> list[OptionTrial]:
    count = round(CHOICE_AVERAGED * steps)
    done = [run(value) for value in values]
    last = [each.losses[-count:] for each in done]
    losses = [
        math.inf if each.failed else statistics.fmean(part)
        for each, part in zip(done, last, strict=True)
    ]
    best = min(range(len(values)), key=losses.__getitem__)
    if math.isfinite(losses[0]) and is_within_error(last[0], last[best]):
        best = 0
    return [
        OptionTrial(option, value, steps, loss, chosen=at == best)
        for at, (value, loss) in enumerate(zip(values, losses, strict=True))
    ]


def is_within_error(losses: Sequence[float], best: Sequence[float]) -> bool:
    """Return whether losses exceed the best ones by at most the standard error of the difference.

    Args:
        losses: of the last steps of a run.
        best: of the same steps, on the same batches, of another run.

    >>> is_within_error([1.0, 2.0], [1.1, 1.9]), is_within_error([2.0, 3.1], [1.0, 2.0])
    (True, False)
    """
    differences = [one - other for one, other in zip(losses, best, strict=True)]
    if len(differences) < 2:
        return False
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    return statistics.fmean(differences) <= error


@dataclass(frozen=True)
class _Trial:
    setup: TrainingSetup
    rate: float
    steps: int
    progress: ProgressCallback

    def run(self, warmup: int = 0, decay: float | None = None) -> ShortRun:
        what = f"warm-up {warmup}" if decay is None else f"weight decay {decay:g}"
        self.progress(Progress("choice", what))
        return self.setup.short_run(
            self.rate,
            self.steps,
            rate_at=(lambda step: self.rate * min(1, (step + 1) / warmup)) if warmup else None,
            is_ramp=False,
            weight_decay=decay,
        )

    def own_decay(self) -> float:
        groups = bind_optimizer(self.setup.optimizer, self.setup.problem.model).param_groups
        return max(float(group["weight_decay"]) for group in groups)
