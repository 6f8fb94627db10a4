"""The true onset by a slow search of its own.

Nothing here uses the advisor's code: plain torch loops on copies of the model.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator

import torch
from learning_rate_cases import BATCH_SIZE, Batch, Case
from torch import nn

from normscope.problem.loss import LOSSES

STEPS = 100
ORDERS = 3
TOLERANCE = 1.05
_CAUTION = 10 * 1.5**4
LIMITS = {"squared_error": 3.0, "cross_entropy": 1.5}


def losses(
    case: Case, model: nn.Module, rate_at: Callable[[int], float], order: int, steps: int
) -> Iterator[float]:
    """Train a copy, giving the loss before every update."""
    model = copy.deepcopy(model).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=case.momentum)
    x, y = case.samples()
    generator = torch.Generator().manual_seed(1000 + order)
    permutation = torch.randperm(len(x), generator=generator)
    for step in range(steps):
        start = step * BATCH_SIZE % (len(x) - BATCH_SIZE + 1)
        chosen = permutation[start : start + BATCH_SIZE]
        loss = LOSSES[case.loss](model(x[chosen]), y[chosen])
        yield loss.item()
        optimizer.param_groups[0]["lr"] = rate_at(step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def broke_at(values: Iterator[float], limit: float) -> int | None:
    """The step at which a loss is non-finite or beyond the limit; None if it never is."""
    first = None
    for step, value in enumerate(values):
        first = value if first is None else first
        if not math.isfinite(value) or value > limit * first:
            return step
    return None


#: (learning rate by step, number of the data order, steps) -> the loss before every update
Run = Callable[[Callable[[int], float], int, int], Iterator[float]]


def true_onset(case: Case, model: nn.Module) -> list[float]:
    """The smallest unstable learning rate to 5 %, for each of three orders of the data."""

    def run(rate_at: Callable[[int], float], order: int, steps: int) -> Iterator[float]:
        return losses(case, model, rate_at, order, steps)

    return onsets_of(run, LIMITS[case.loss])


def onsets_of(run: Run, limit: float, orders: int = ORDERS) -> list[float]:
    """The smallest unstable learning rate to 5 %, for each of some orders of the data.

    The rate rises by half from a fiftieth of where a growing one breaks, so that no unstable rate
    below is passed over by more; then in three smaller steps; then by bisection. A tenth is not
    low enough for nets that stand still at first: a growing rate has passed the unstable ones by
    the time they leave their plateau.
    """
    start = _scout(run, limit) / _CAUTION
    found: list[float] = []
    for order in range(orders):
        found.append(_onset(run, limit, order, start))
        start = min(start, min(found) / 2) if math.isinf(min(found)) else min(found) / 2
    return found


def _scout(run: Run, limit: float, start: float = 1e-3) -> float:
    """Where a growing rate breaks; it starts lower if the first ones do."""
    broken = broke_at(run(lambda step: start * 1.1**step, 0, 2 * STEPS), limit)
    if broken is not None and broken < 20 and start > 1e-12:
        return _scout(run, limit, start / 1e3)
    return float(start * 1.1 ** (2 * STEPS if broken is None else broken))


def _onset(run: Run, limit: float, order: int, low: float) -> float:
    def unstable(rate: float) -> bool:
        return broke_at(run(lambda step: rate, order, STEPS), limit) is not None

    while unstable(low):
        low /= 2
    high = low * 1.5
    while not unstable(high):
        low, high = high, high * 1.5
        if high > 1e9:
            return math.inf
    third = (high / low) ** (1 / 3)
    for _ in range(2):
        if unstable(low * third):
            high = low * third
            break
        low *= third
    while high / low > TOLERANCE:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if unstable(middle) else (middle, high)
    return high


def one_batch(case: Case) -> Batch:
    """The first batch of the data."""
    x, y = case.samples()
    return x[:BATCH_SIZE], y[:BATCH_SIZE]
