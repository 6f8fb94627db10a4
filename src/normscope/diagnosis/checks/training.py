"""Checks of loss and optimizer: reduction, weight decay, learning rate, warm-up."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator

from torch import Tensor

from normscope.diagnosis.examination import Examination, Run
from normscope.diagnosis.registry import check
from normscope.diagnosis.results import Finding
from normscope.learning_rate.stability import growth_limit, has_second_moment
from normscope.problem.batch import split_batch
from normscope.text import format_number as number
from normscope.text import plural
from normscope.training.optimizers import step_on_copies

DECAY_SHARE = 0.01
"""Part of weight decay in the update of norm parameters and biases from which on to warn."""
STEPS = 4
"""Steps of the trial at the optimizer's rate."""
LAST = 3
"""Losses at the end of a run whose median is judged if the loss may come back, as with Adam."""
DEEP_STEPS = 30
"""Steps of the trial with ``deep``."""
WARMUPS = (5, 10, 20)
"""Lengths of warm-up that are tried with ``deep``."""
DIVISORS = (8, 64, 512, 4096)
"""By which the rate is divided until a trial lowers the loss."""
DEEP_DIVISORS = (2, 4, 8, 16, 64, 512, 4096)
"""Those with ``deep``."""


@check()
def sum_reduction(exam: Examination) -> Iterator[Finding]:
    """The loss is a sum over the samples, so that its gradient grows with the batch size."""
    if exam.samples is None or exam.samples < 4:
        return
    whole = exam.in_eval_mode.loss
    parts = split_batch(exam.batch, -(-exam.samples // 2))
    halves = [exam.loss(flags=exam.eval_flags, batch=part) for part in parts]
    mean = sum(halves) / len(halves)
    ratio = whole / mean if mean else math.nan
    additive = abs(whole - sum(halves)) < 0.02 * abs(whole)
    if len(parts) != 2 or not additive or not 1.8 < ratio < 2.2:
        return
    yield Finding(
        "warning",
        ("loss",),
        f"The loss is a sum over the samples: the gradient and the largest stable learning rate "
        f"change with the batch size, here by a factor of {exam.samples}.",
        f"twice the samples give {number(ratio, 3)} times the loss.",
        ratio,
        'loss = nn.CrossEntropyLoss(reduction="mean")\n# or divide the loss by the samples',
        f"divided by the samples, twice the samples give {number(ratio / 2, 3)} times the loss.",
        ratio / 2,
    )


@check(needs_optimizer=True)
def decayed_norm(exam: Examination) -> Iterator[Finding]:
    """Weight decay acts on norm parameters and biases."""
    decayed = _decayed(exam)
    if not decayed:
        return
    share = _decay_share(exam, list(decayed.values()))
    modules = tuple(dict.fromkeys(name.rpartition(".")[0] for name in decayed))
    count = sum(each.numel() for each in decayed.values())
    yield Finding(
        "warning" if share >= DECAY_SHARE else "note",
        modules,
        f"Weight decay pulls {plural(count, 'parameter')} of norm layers and biases to zero, which "
        "limits no capacity.",
        f"decay is {number(100 * share)} % of a step of the optimizer on these.",
        share,
        "decayed = [p for p in model.parameters() if p.dim() > 1]\n"
        "others = [p for p in model.parameters() if p.dim() <= 1]\n"
        "groups = [{'params': decayed}, {'params': others, 'weight_decay': 0}]\n"
        f"optimizer = {type(exam.optimizer).__name__}(groups, ...)",
        f"decay is {number(100 * _decay_share(exam, list(decayed.values()), 0.0))} % of a step.",
        _decay_share(exam, list(decayed.values()), 0.0),
    )


def _decayed(exam: Examination) -> dict[str, Tensor]:
    """Return the norm parameters and biases in groups with weight decay, by name."""
    groups = exam.given_optimizer.param_groups
    ids = {id(p) for g in groups if g.get("weight_decay", 0) > 0 for p in g["params"]}
    norms = {id(p) for each in exam.norms.values() for p in each.parameters()}
    return {
        name: p
        for name, p in exam.model.named_parameters()
        if id(p) in ids and p.requires_grad and (id(p) in norms or name.endswith("bias"))
    }


def _decay_share(exam: Examination, chosen: list[Tensor], decay: float | None = None) -> float:
    """Return the part of weight decay in one step of the optimizer on some parameters."""
    own = dict(exam.model.named_parameters())
    gradients: dict[Tensor, Tensor] = {own[n]: g for n, g in exam.observed.gradients.items()}

    def step(factor: float | None) -> list[Tensor]:
        stepper = exam.copied_optimizer()
        for group in stepper.param_groups if factor is not None else ():
            group["weight_decay"] = factor
        after, _ = step_on_copies(stepper, gradients)
        return [after[p].detach() - p.detach() for p in chosen if p in after]

    without, given = step(0.0), step(decay)
    if not without:
        return 0.0
    difference = sum(
        float((a - b).double().square().sum()) for a, b in zip(given, without, strict=True)
    )
    total = sum(float(a.double().square().sum()) for a in given)
    return math.sqrt(difference / total) if total else 0.0


@check(needs_optimizer=True)
def learning_rate_too_high(exam: Examination) -> Iterator[Finding]:
    """The learning rate is above the limit: a trial run becomes unstable."""
    trial = _trial(exam, 1.0)
    if _is_stable(exam, trial) or _sufficient_warmup(exam):
        return
    unsure = _may_recover(exam) and not exam.deep and all(map(math.isfinite, trial))
    rate, divisor = _rate_of(exam), _stable_divisor(exam)
    lower = f"{rate / (divisor or DIVISORS[-1]):.2g}"
    calm = _trial(exam, 1 / (divisor or DIVISORS[-1]))
    ends = f"at {lower} the loss is {_worst(calm[-1:])} after {plural(len(calm) - 1, 'step')}"
    yield Finding(
        "warning" if unsure else "error",
        ("optimizer",),
        f"The learning rate {number(rate)} is too high: training becomes unstable"
        + ("; deep=True tells whether the loss comes back." if unsure else "."),
        f"loss {number(trial[0], 3)} before, {_worst(trial)} within "
        f"{plural(len(trial) - 1, 'step')}.",
        max(trial, key=_key),
        (f"for group in optimizer.param_groups:\n    group['lr'] = {lower}\n" if divisor else "")
        + "# ns.max_learning_rate finds the limit",
        f"{ends}." if divisor else f"no rate that was tried lowers the loss; {ends}.",
        calm[-1] if divisor else None,
    )


@check(needs_optimizer=True)
def warmup_needed(exam: Examination) -> Iterator[Finding]:
    """The learning rate is too high for the first steps alone; trial runs, only with ``deep``."""
    warmup = _sufficient_warmup(exam)
    if not warmup:
        return
    plain, warm = _trial(exam, 1.0), _trial(exam, 1.0, warmup)
    rate, divisor = _rate_of(exam), _stable_divisor(exam)
    rises = f"; from the start only {number(rate / divisor)} is stable" if divisor else ""
    yield Finding(
        "warning",
        ("optimizer",),
        f"The learning rate {number(rate)} is too high for the first steps, but not after a "
        f"warm-up of {warmup} steps{rises}.",
        f"without warm-up the loss goes from {number(plain[0], 3)} to {_worst(plain)} within "
        f"{plural(len(plain) - 1, 'step')}.",
        max(plain, key=_key),
        "scheduler = torch.optim.lr_scheduler.LinearLR(\n"
        f"    optimizer, start_factor={1 / (warmup + 1):.2g}, total_iters={warmup}\n"
        ")",
        f"with it the loss goes to {number(warm[-1], 3)} in {len(warm) - 1} steps.",
        warm[-1],
    )


def _trial(exam: Examination, factor: float, warmup: int = 0) -> list[float]:
    return trial_run(exam, factor, warmup).losses


def trial_run(exam: Examination, factor: float, warmup: int = 0) -> Run:
    """Return a run at a multiple of the optimizer's rates, after a linear warm-up.

    Args:
        exam: keeps the run, so that it is made once.
        factor: of the rates.
        warmup: steps.
    """
    if (factor, warmup) not in exam.runs:
        steps = DEEP_STEPS + warmup if exam.deep else STEPS
        rates = [factor * min(1.0, (step + 1) / (warmup + 1)) for step in range(steps)]
        limit = math.inf if _may_recover(exam) else 1.001 * _limit(exam, exam.observed.loss)
        exam.runs[factor, warmup] = exam.train(rates, limit)
    return exam.runs[factor, warmup]


def _is_stable(exam: Examination, losses: list[float]) -> bool:
    if not all(map(math.isfinite, losses)):
        return False
    judged = [statistics.median(losses[-LAST:])] if _may_recover(exam) else losses
    return all(each <= _limit(exam, losses[0]) for each in judged)


def _limit(exam: Examination, first: float) -> float:
    """Return the loss above which a run is unstable."""
    return growth_limit(exam.problem.loss) * max(abs(first), 1e-30)


def _may_recover(exam: Examination) -> bool:
    """Return whether a loss that jumps may come back: the optimizer divides by past gradients."""
    return has_second_moment(exam.given_optimizer)


def _sufficient_warmup(exam: Examination) -> int:
    """Return the shortest warm-up with which a rate that is too high becomes stable; 0 if none."""
    if not exam.deep or _is_stable(exam, _trial(exam, 1.0)):
        return 0
    for warmup in WARMUPS:
        losses = _trial(exam, 1.0, warmup)
        if _is_stable(exam, losses) and losses[-1] < losses[0]:
            return warmup
    return 0


def _stable_divisor(exam: Examination) -> int | None:
    """Return the smallest divisor of the rate at which a run lowers the loss; None if none does."""
    for divisor in DEEP_DIVISORS if exam.deep else DIVISORS:
        losses = _trial(exam, 1 / divisor)
        if _is_stable(exam, losses) and losses[-1] < losses[0]:
            return divisor
    return None


def _rate_of(exam: Examination) -> float:
    return float(max(group["lr"] for group in exam.given_optimizer.param_groups))


def _key(value: float) -> float:
    return value if math.isfinite(value) else math.inf


def _worst(losses: list[float]) -> str:
    worst = max(losses, key=_key)
    return number(worst, 3) if math.isfinite(worst) else "a value that is not finite"
