"""The learning rate at which a last layer that is trained alone becomes unstable."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from normscope.learning_rate.last_layer import LastLayer
from normscope.learning_rate.onset import STEPS
from normscope.learning_rate.rules import UpdateRule
from normscope.learning_rate.simulation import Simulation
from normscope.problem.loss import known_loss
from normscope.problem.problem import Problem

__all__ = ["last_layer_onset"]

_GRID = 5  # learning rates tried at once
_COARSE = 4.0  # between neighbours of the first grid
_BETWEEN = 6  # steps of the lattice from one of them to the next
_FINE = _COARSE ** (1 / _BETWEEN)
_SOON = 20  # steps within which a rate far too large shows
_BELOW, _ABOVE = 6, 3  # steps of the lattice around a rate that is near


def last_layer_onset(
    layer: LastLayer, problem: Problem, rule: UpdateRule, near: float | None = None
) -> float | None:
    """The onset of instability of a last layer that is trained alone.

    The definition is that of the whole project, with the batches of ``layer`` in turn. No pass
    through the network is needed. All rates are tried on one lattice, six to a factor of four: at
    once those around a rate that is near, such as the bound of a squared error; or a coarse grid
    first, for a few steps, then the points between.

    Args:
        layer: weights and inputs.
        problem: for its loss.
        rule: of the optimizer.
        near: a learning rate at most four times above the onset or two below, if one is known; a
            wrong one costs time, but does not change the answer.

    Returns:
        The onset to about 12 %; None if none was found near the bound or a million times above.
    """
    simulation, guess = Simulation(layer, problem, rule), _guess(layer, rule)
    lowest = guess / 2
    near = _bound_of_squares(layer, problem, rule, guess) if near is None else near
    if near is not None and near > 0:
        place = round(math.log(near / lowest, _FINE))
        around = [lowest * _FINE**step for step in range(place - _BELOW, place + _ABOVE + 1)]
        stable = simulation.stable(around)
        found = _between(around, stable) if stable[0] else _below(simulation, around[0])
        if found is not None:
            return found
    for _ in range(5):  # a grid that begins above the onset or ends below it is shifted
        grid = [lowest * _COARSE**place for place in range(_GRID)]
        for steps in (_SOON, STEPS):
            stable = simulation.stable(grid, steps)
            found = _refined(simulation, grid, stable)
            if found is not None:
                return found
            if not stable[0]:
                break
        lowest = grid[-1] if stable[0] else lowest / _COARSE ** (_GRID - 1)
    return None


def _refined(simulation: Simulation, grid: Sequence[float], stable: Sequence[bool]) -> float | None:
    """The onset below the first rate of the coarse grid that is not stable, if one before is."""
    if not stable[0] or all(stable):
        return None
    return _below(simulation, grid[list(stable).index(False)])


def _below(simulation: Simulation, high: float) -> float | None:
    """The onset below a rate that is not stable, one coarse step down after another.

    The step next to it need not hold the onset: a rate that is stable for a few steps may not be
    for all. None if no rate far below is stable either.
    """
    for _ in range(_GRID):
        low = high / _COARSE
        inner = [low * _FINE**place for place in range(_BETWEEN)]
        found = _between([*inner, high], [*simulation.stable(inner), False])
        if found is not None:
            return found
        high = low
    return None


def _between(rates: Sequence[float], stable: Sequence[bool]) -> float | None:
    """The middle of the first neighbours of which one is stable and one is not."""
    if not stable[0] or all(stable):
        return None
    place = list(stable).index(False)
    return math.sqrt(rates[place - 1] * rates[place])


def _guess(layer: LastLayer, rule: UpdateRule) -> float:
    """A learning rate to begin from: the bound of a squared error on the first batch."""
    if rule.second_moment is not None:
        return 1e-3
    features = layer.features[0]
    rows = features.reshape(-1, features.shape[-1])
    gram = rows @ rows.T if len(rows) < rows.shape[1] else rows.T @ rows
    largest = float(torch.linalg.eigvalsh(gram.double()).amax()) / len(features)
    return rule.largest_stable_rate(largest + (layer.bias is not None))


def _bound_of_squares(
    layer: LastLayer, problem: Problem, rule: UpdateRule, guess: float
) -> float | None:
    """The guess in the scale of a squared error, which is near; None for other losses and rules."""
    features, target = layer.features[0], layer.targets[0]
    known = known_loss(problem.loss, features @ layer.weight.T, target)
    if known is None or known.kind != "squares" or rule.second_moment is not None:
        return None
    return guess / (known.scale * len(features))
