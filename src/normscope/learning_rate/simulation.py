"""Training a linear last layer on inputs that stand still, at many learning rates at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from normscope.curvature.problem import Problem
from normscope.learning_rate.last_layer import LastLayer
from normscope.learning_rate.onset import STEPS, growth_limit
from normscope.learning_rate.rules import UpdateRule
from normscope.learning_rate.slopes import slopes

__all__ = ["last_layer_onset", "stable_rates"]

_GRID = 5  # learning rates tried at once
_COARSE = 4.0  # between neighbours of the first grid
_BETWEEN = 6  # steps of the lattice from one of them to the next
_FINE = _COARSE ** (1 / _BETWEEN)
_SOON = 20  # steps within which a rate far too large shows
_BELOW, _ABOVE = 6, 3  # steps of the lattice around a rate that is near
_Value = TypeVar("_Value")


def last_layer_onset(
    layer: LastLayer, problem: Problem, rule: UpdateRule, near: float | None = None
) -> float | None:
    """The onset of instability of a last layer that is trained alone.

    The definition is that of the whole project, with the batches of ``layer`` in turn. No pass
    through the network is needed. All rates are tried on one lattice, six to a factor of four: a
    coarse grid first, for a few steps, then the points between; or at once those around a rate that
    is near.

    Args:
        layer: weights and inputs.
        problem: for its loss.
        rule: of the optimizer.
        near: a learning rate at most four times above the onset or two below, if one is known; a
            wrong one costs time, but does not change the answer.

    Returns:
        The onset to about 12 %; None if none was found near the bound or a million times above.
    """
    lowest = _guess(layer, rule) / 2
    if near is not None and near > 0:
        place = round(math.log(near / lowest, _FINE))
        around = [lowest * _FINE**step for step in range(place - _BELOW, place + _ABOVE + 1)]
        found = _between(around, stable_rates(layer, problem, rule, around))
        if found is not None:
            return found
    for _ in range(5):  # a grid that begins above the onset or ends below it is shifted
        grid = [lowest * _COARSE**place for place in range(_GRID)]
        for steps in (_SOON, STEPS):
            stable = stable_rates(layer, problem, rule, grid, steps)
            found = _refined(layer, problem, rule, grid, stable)
            if found is not None:
                return found
            if not stable[0]:
                break
        lowest = grid[-1] if stable[0] else lowest / _COARSE ** (_GRID - 1)
    return None


def _refined(
    layer: LastLayer,
    problem: Problem,
    rule: UpdateRule,
    grid: Sequence[float],
    stable: Sequence[bool],
) -> float | None:
    """The onset between a rate of the coarse grid and its neighbour that is not stable.

    None if the grid has no such rates, or the lower one is not stable either, after all steps.
    """
    if not stable[0] or all(stable):
        return None
    low = grid[list(stable).index(False) - 1]
    inner = [low * _FINE**place for place in range(_BETWEEN)]
    found = stable_rates(layer, problem, rule, inner)
    return _between([*inner, low * _COARSE], [*found, False])


def _between(rates: Sequence[float], stable: Sequence[bool]) -> float | None:
    """The middle of the first neighbours of which one is stable and one is not."""
    if not stable[0] or all(stable):
        return None
    place = list(stable).index(False)
    return math.sqrt(rates[place - 1] * rates[place])


def stable_rates(
    layer: LastLayer,
    problem: Problem,
    rule: UpdateRule,
    rates: Sequence[float],
    steps: int = STEPS,
) -> list[bool]:
    """Which learning rates train the last layer without an instability.

    Args:
        layer: weights and inputs.
        problem: for its loss.
        rule: of the optimizer.
        rates: to try, all at once.
        steps: how many to take.

    Returns:
        For each whether it is stable.
    """
    weights = _Weights(layer, rule, rates)
    hills = [
        slopes(problem, features @ layer.weight.T, target)  # for its shape
        for features, target in zip(layer.features, layer.targets, strict=True)
    ]
    alive, first = list(range(len(rates))), [math.inf] * len(rates)
    limit = growth_limit(problem.loss)
    for step in range(steps):
        place = step % len(hills)
        losses, gradient = hills[place].at(weights.outputs(place))
        values = losses.tolist()  # a few numbers are compared faster in Python than as a tensor
        first = values if step == 0 else first
        kept = [_is_stable(*pair, limit) for pair in zip(values, first, strict=True)]
        if not all(kept):
            alive, first = _chosen(alive, kept), _chosen(first, kept)
            gradient = weights.keep(kept, gradient)
        if not alive:
            break
        weights.update(place, gradient)
    return [place in alive for place in range(len(rates))]


def _is_stable(loss: float, first: float, limit: float) -> bool:
    return math.isfinite(loss) and not (loss > limit * first and first > 0)


def _chosen(values: list[_Value], kept: list[bool]) -> list[_Value]:
    return [value for value, keep in zip(values, kept, strict=True) if keep]


class _Weights:
    """Weights and biases of the layer, side by side for every learning rate: (rates, outputs, n).

    The bias is the weight of one more feature that is always one.
    """

    def __init__(self, layer: LastLayer, rule: UpdateRule, rates: Sequence[float]) -> None:
        columns = [layer.weight] if layer.bias is None else [layer.weight, layer.bias.unsqueeze(1)]
        start = torch.cat(columns, dim=1).detach()
        biased = layer.bias is not None
        self._features = [_rows(each, with_ones=biased) for each in layer.features]
        self._columns = [each.T.contiguous() for each in self._features]
        self._offset = None if layer.offset is None else layer.offset.detach().view(1, -1, 1)
        self._rule = rule
        self._value = start.expand(len(rates), *start.shape).clone()
        self._rates = torch.tensor(rates, dtype=start.dtype, device=start.device).view(-1, 1, 1)
        self._momentum = torch.zeros_like(self._value)
        self._square = torch.zeros_like(self._value)
        self._largest = torch.zeros_like(self._value)  # squares, with amsgrad
        self._mean = torch.zeros_like(self._value)  # gradient, if centered
        self._taken = 0

    def outputs(self, place: int) -> Tensor:
        """The layer's outputs on a batch, (rates, outputs, samples * positions)."""
        rates, outputs, size = self._value.shape
        made = (self._value.view(-1, size) @ self._columns[place]).view(rates, outputs, -1)
        return made if self._offset is None else made + self._offset

    def update(self, place: int, output_gradient: Tensor) -> None:
        """One step of every candidate, by the gradient in its outputs on a batch."""
        gradient = (output_gradient.flatten(0, 1) @ self._features[place]).view_as(self._value)
        self._taken += 1
        rule = self._rule
        if rule.decoupled:
            self._value.mul_(1 - self._rates * rule.weight_decay)
        elif rule.weight_decay:
            gradient.add_(self._value, alpha=rule.weight_decay)
        self._value.addcmul_(self._rates, self._step(gradient), value=-1)

    def keep(self, kept: list[bool], output_gradient: Tensor) -> Tensor:
        """Give up the other candidates; the gradient of those that go on."""
        chosen = torch.tensor(kept, device=self._value.device)
        for name in ("_value", "_rates", "_momentum", "_square", "_largest", "_mean"):
            setattr(self, name, getattr(self, name)[chosen])
        return output_gradient[chosen]

    def _step(self, gradient: Tensor) -> Tensor:
        rule = self._rule
        if rule.second_moment is not None:
            return self._divided_step(gradient, rule.second_moment)
        if rule.momentum == 0:
            return gradient
        fresh = 1.0 if self._taken == 1 else 1 - rule.dampening  # torch's first buffer
        self._momentum.mul_(rule.momentum).add_(gradient, alpha=fresh)
        return gradient + rule.momentum * self._momentum if rule.nesterov else self._momentum

    def _divided_step(self, gradient: Tensor, decay: float) -> Tensor:
        rule = self._rule
        self._square = decay * self._square + (1 - decay) * gradient.square()
        if rule.dampening:  # Adam: running means, both corrected for their start at zero
            self._momentum = rule.momentum * self._momentum + (1 - rule.momentum) * gradient
            mean = self._momentum / (1 - rule.momentum**self._taken)
            self._largest = self._square.maximum(self._largest) if rule.amsgrad else self._square
            return mean / ((self._largest / (1 - decay**self._taken)).sqrt() + rule.epsilon)
        square = self._square
        if rule.centered:
            self._mean = decay * self._mean + (1 - decay) * gradient
            square = (square - self._mean.square()).clamp(min=0)
        divided = gradient / (square.sqrt() + rule.epsilon)
        self._momentum = rule.momentum * self._momentum + divided
        return self._momentum


def _rows(features: Tensor, with_ones: bool) -> Tensor:
    rows = features.flatten(0, -2)
    return torch.cat([rows, rows.new_ones(len(rows), 1)], dim=1) if with_ones else rows


def _guess(layer: LastLayer, rule: UpdateRule) -> float:
    """A learning rate to begin from: the bound of a squared error on the first batch."""
    if rule.second_moment is not None:
        return 1e-3
    features = layer.features[0]
    rows = features.reshape(-1, features.shape[-1])
    gram = rows @ rows.T if len(rows) < rows.shape[1] else rows.T @ rows
    largest = float(torch.linalg.eigvalsh(gram.double()).amax()) / len(features)
    return rule.largest_stable_rate(largest + (layer.bias is not None))
