"""Training a linear last layer on inputs that stand still, at many learning rates at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from normscope.learning_rate.last_layer import LastLayer
from normscope.learning_rate.onset import STEPS, growth_limit, is_beyond
from normscope.learning_rate.rules import UpdateRule
from normscope.learning_rate.slopes import slopes
from normscope.learning_rate.updates import Updates
from normscope.problem.problem import Problem

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
    """Weights and biases of the layer for every learning rate: (rates, outputs, inputs)."""

    def __init__(self, start: _Start, rule: UpdateRule, rates: Sequence[float]) -> None:
        self._start, self._updates, value = start, Updates(rule), start.value
        self.value = value.expand(len(rates), *value.shape).clone()
        self._rates = torch.tensor(rates, dtype=value.dtype, device=value.device).view(-1, 1, 1)

    def outputs(self, place: int) -> Tensor:
        """The layer's outputs on a batch, (rates, outputs, samples * positions)."""
        rates, outputs, size = self.value.shape
        made = (self.value.view(-1, size) @ self._start.columns[place]).view(rates, outputs, -1)
        offset = self._start.offset
        return made if offset is None else made + offset

    def update(self, place: int, output_gradient: Tensor) -> None:
        """One step of every candidate, by the gradient in its outputs on a batch."""
        gradient = (output_gradient.flatten(0, 1) @ self._start.rows[place]).view_as(self.value)
        self._updates.apply(self.value, gradient, self._rates)

    def keep(self, kept: list[bool], output_gradient: Tensor) -> Tensor:
        """Give up the other candidates; the gradient of those that go on."""
        chosen = torch.tensor(kept, device=self.value.device)
        self.value, self._rates = self.value[chosen], self._rates[chosen]
        self._updates.keep(chosen)
        return output_gradient[chosen]
