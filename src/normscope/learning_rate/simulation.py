"""Training a linear last layer on inputs that stand still, at many learning rates at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from normscope.curvature.problem import Problem
from normscope.learning_rate.last_layer import LastLayer
from normscope.learning_rate.onset import STEPS, growth_limit, is_beyond
from normscope.learning_rate.rules import UpdateRule
from normscope.learning_rate.slopes import slopes

__all__ = ["Simulation"]

_Value = TypeVar("_Value")


class Simulation:
    """A last layer's training on the batches in turn, with all before it standing still.

    Args:
        layer: weights and inputs.
        problem: for its loss.
        rule: of the optimizer.
    """

    def __init__(self, layer: LastLayer, problem: Problem, rule: UpdateRule) -> None:
        self._start, self._rule = _Start(layer), rule
        self._limit = growth_limit(problem.loss)
        self._hills = [
            slopes(problem, features @ layer.weight.T, target)  # for its shape
            for features, target in zip(layer.features, layer.targets, strict=True)
        ]

    def stable(self, rates: Sequence[float], steps: int = STEPS) -> list[bool]:
        """Which learning rates train the layer without an instability.

        Args:
            rates: to try, all at once.
            steps: how many to take.

        Returns:
            For each whether it is stable.
        """
        weights = _Weights(self._start, self._rule, rates)
        alive, first = list(range(len(rates))), [math.inf] * len(rates)
        for step in range(steps):
            place = step % len(self._hills)
            losses, gradient = self._hills[place].at(weights.outputs(place))
            values = losses.tolist()  # a few numbers are compared faster in Python than as a tensor
            first = values if step == 0 else first
            kept = [not is_beyond(*pair, self._limit) for pair in zip(values, first, strict=True)]
            if not all(kept):
                alive, first = _chosen(alive, kept), _chosen(first, kept)
                gradient = weights.keep(kept, gradient)
            if not alive:
                break
            weights.update(place, gradient)
        return [place in alive for place in range(len(rates))]


def _chosen(values: list[_Value], kept: list[bool]) -> list[_Value]:
    return [value for value, keep in zip(values, kept, strict=True) if keep]


class _Start:
    """Where every candidate begins, and the inputs of all.

    The bias is the weight of one more feature that is always one.
    """

    def __init__(self, layer: LastLayer) -> None:
        columns = [layer.weight] if layer.bias is None else [layer.weight, layer.bias.unsqueeze(1)]
        self.value = torch.cat(columns, dim=1).detach()
        biased = layer.bias is not None
        self.rows = [_rows(each, with_ones=biased) for each in layer.features]
        self.columns = [each.T.contiguous() for each in self.rows]
        self.offset = None if layer.offset is None else layer.offset.detach().view(1, -1, 1)


def _rows(features: Tensor, with_ones: bool) -> Tensor:
    rows = features.flatten(0, -2)
    return torch.cat([rows, rows.new_ones(len(rows), 1)], dim=1) if with_ones else rows


class _Weights:
    """Weights and biases of the layer, side by side for every learning rate: (rates, outputs, n).

    What the optimizer remembers is made when it is first needed.
    """

    def __init__(self, start: _Start, rule: UpdateRule, rates: Sequence[float]) -> None:
        self._start, self._rule, value = start, rule, start.value
        self.value = value.expand(len(rates), *value.shape).clone()
        self._rates = torch.tensor(rates, dtype=value.dtype, device=value.device).view(-1, 1, 1)
        self._memory: dict[str, Tensor] = {}
        self._taken = 0

    def outputs(self, place: int) -> Tensor:
        """The layer's outputs on a batch, (rates, outputs, samples * positions)."""
        rates, outputs, size = self.value.shape
        made = (self.value.view(-1, size) @ self._start.columns[place]).view(rates, outputs, -1)
        offset = self._start.offset
        return made if offset is None else made + offset

    def update(self, place: int, output_gradient: Tensor) -> None:
        """One step of every candidate, by the gradient in its outputs on a batch."""
        gradient = (output_gradient.flatten(0, 1) @ self._start.rows[place]).view_as(self.value)
        self._taken += 1
        rule = self._rule
        if rule.decoupled:
            self.value.mul_(1 - self._rates * rule.weight_decay)
        elif rule.weight_decay:
            gradient.add_(self.value, alpha=rule.weight_decay)
        self.value.addcmul_(self._rates, self._step(gradient), value=-1)

    def keep(self, kept: list[bool], output_gradient: Tensor) -> Tensor:
        """Give up the other candidates; the gradient of those that go on."""
        chosen = torch.tensor(kept, device=self.value.device)
        self.value, self._rates = self.value[chosen], self._rates[chosen]
        self._memory = {name: each[chosen] for name, each in self._memory.items()}
        return output_gradient[chosen]

    def _step(self, gradient: Tensor) -> Tensor:
        rule = self._rule
        if rule.second_moment is not None:
            return self._divided_step(gradient, rule.second_moment)
        if rule.momentum == 0:
            return gradient
        if self._taken == 1:  # torch's first buffer
            velocity = self._memory["velocity"] = gradient.clone()
        else:
            velocity = self._memory["velocity"].mul_(rule.momentum)
            velocity.add_(gradient, alpha=1 - rule.dampening)
        return gradient + rule.momentum * velocity if rule.nesterov else velocity

    def _divided_step(self, gradient: Tensor, decay: float) -> Tensor:
        rule = self._rule
        square = self._averaged("square", gradient.square(), decay)
        if rule.dampening:  # Adam: running means, both corrected for their start at zero
            mean = self._averaged("mean", gradient, rule.momentum)
            mean = mean / (1 - rule.momentum**self._taken)
            if rule.amsgrad:
                square = square.maximum(self._memory.get("largest", square))
                self._memory["largest"] = square
            return mean / ((square / (1 - decay**self._taken)).sqrt() + rule.epsilon)
        if rule.centered:
            square = (square - self._averaged("mean", gradient, decay).square()).clamp(min=0)
        divided = gradient / (square.sqrt() + rule.epsilon)
        if self._taken > 1:
            divided += rule.momentum * self._memory["velocity"]
        self._memory["velocity"] = divided
        return divided

    def _averaged(self, name: str, value: Tensor, decay: float) -> Tensor:
        """A running mean that begins at zero."""
        fresh = (1 - decay) * value
        if self._taken > 1:
            fresh += decay * self._memory[name]
        self._memory[name] = fresh
        return fresh
