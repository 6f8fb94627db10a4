"""Training a linear last layer on inputs that stand still, at many learning rates at once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from normscope.curvature.problem import Problem
from normscope.learning_rate.last_layer import LastLayer
from normscope.learning_rate.onset import STEPS, growth_limit
from normscope.learning_rate.rules import UpdateRule

__all__ = ["last_layer_onset", "stable_rates"]

_GRID = 5  # learning rates tried at once
_COARSE = 4.0  # between neighbours of the first grid


def last_layer_onset(layer: LastLayer, problem: Problem, rule: UpdateRule) -> float | None:
    """The onset of instability of a last layer that is trained alone.

    The definition is that of the whole project, with the batches of ``layer`` in turn. No pass
    through the network is needed.

    Args:
        layer: weights and inputs.
        problem: for its loss.
        rule: of the optimizer.

    Returns:
        The onset to about 12 %; None if none was found near the bound or a million times above.
    """
    low = _guess(layer, rule) / 2
    for _ in range(5):  # a grid that begins above the onset or ends below it is shifted
        grid = [low * _COARSE**place for place in range(_GRID)]
        stable = stable_rates(layer, problem, rule, grid)
        if not stable[0]:
            low /= _COARSE ** (_GRID - 1)
        elif all(stable):
            low = grid[-1]
        else:
            place = stable.index(False)
            return _refined(layer, problem, rule, grid[place - 1], grid[place])
    return None


def _refined(
    layer: LastLayer, problem: Problem, rule: UpdateRule, low: float, high: float
) -> float:
    """The onset between a stable and an unstable rate, by one finer grid."""
    inner = [low * (high / low) ** (place / (_GRID + 1)) for place in range(1, _GRID + 1)]
    stable = stable_rates(layer, problem, rule, inner)
    place = stable.index(False) if False in stable else _GRID
    ends = [low, *inner, high]
    return math.sqrt(ends[place] * ends[place + 1])


def stable_rates(
    layer: LastLayer, problem: Problem, rule: UpdateRule, rates: Sequence[float]
) -> list[bool]:
    """Which learning rates train the last layer without an instability.

    Args:
        layer: weights and inputs.
        problem: for its loss.
        rule: of the optimizer.
        rates: to try, all at once.

    Returns:
        For each whether it is stable.
    """
    weights = _Weights(layer, rule, rates)
    alive = list(range(len(rates)))
    first: Tensor | None = None
    limit = growth_limit(problem.loss)
    for step in range(STEPS):
        features = layer.features[step % len(layer.features)]
        outputs = weights.outputs(features).requires_grad_()
        with torch.enable_grad():
            target = layer.targets[step % len(layer.targets)]
            losses = torch.stack([problem.loss_of(output, target) for output in outputs])
            (gradient,) = torch.autograd.grad(losses.sum(), outputs)
        losses = losses.detach()
        first = losses if first is None else first
        kept = losses.isfinite() & ~((losses > limit * first) & (first > 0))
        if not bool(kept.all()):
            alive = [rate for rate, keep in zip(alive, kept.tolist(), strict=True) if keep]
            gradient, first = gradient[kept], first[kept]
            weights.keep(kept)
        if not alive:
            break
        weights.update(features, gradient)
    return [place in alive for place in range(len(rates))]


class _Weights:
    """Weights and biases of the layer, side by side for every learning rate: (rates, outputs, n).

    The bias is the weight of one more feature that is always one.
    """

    def __init__(self, layer: LastLayer, rule: UpdateRule, rates: Sequence[float]) -> None:
        columns = [layer.weight] if layer.bias is None else [layer.weight, layer.bias.unsqueeze(1)]
        start = torch.cat(columns, dim=1).detach()
        self._biased = layer.bias is not None
        self._rule = rule
        self._value = start.expand(len(rates), *start.shape).clone()
        self._rates = torch.tensor(rates, dtype=start.dtype, device=start.device).view(-1, 1, 1)
        self._momentum = torch.zeros_like(self._value)
        self._square = torch.zeros_like(self._value)
        self._taken = 0

    def outputs(self, features: Tensor) -> Tensor:
        rates, outputs, size = self._value.shape
        given = self._with_ones(features)
        made = given.reshape(-1, size) @ self._value.reshape(-1, size).T
        return made.view(*given.shape[:-1], rates, outputs).movedim(-2, 0).contiguous()

    def update(self, features: Tensor, output_gradient: Tensor) -> None:
        rates, outputs, size = self._value.shape
        rows = output_gradient.reshape(rates, -1, outputs).transpose(1, 2)
        gradient = rows @ self._with_ones(features).reshape(-1, size)
        self._taken += 1
        rule = self._rule
        if rule.decoupled:
            self._value = self._value * (1 - self._rates * rule.weight_decay)
        elif rule.weight_decay:
            gradient = gradient + rule.weight_decay * self._value
        self._value = self._value - self._rates * self._step(gradient)

    def keep(self, chosen: Tensor) -> None:
        for name in ("_value", "_rates", "_momentum", "_square"):
            setattr(self, name, getattr(self, name)[chosen])

    def _step(self, gradient: Tensor) -> Tensor:
        rule = self._rule
        if rule.second_moment is not None:
            return self._divided_step(gradient, rule.second_moment)
        fresh = 1.0 if self._taken == 1 else 1 - rule.dampening  # torch's first buffer
        self._momentum = rule.momentum * self._momentum + fresh * gradient
        return gradient + rule.momentum * self._momentum if rule.nesterov else self._momentum

    def _divided_step(self, gradient: Tensor, decay: float) -> Tensor:
        rule = self._rule
        self._square = decay * self._square + (1 - decay) * gradient.square()
        if rule.dampening:  # Adam: running means, both corrected for their start at zero
            self._momentum = rule.momentum * self._momentum + (1 - rule.momentum) * gradient
            mean = self._momentum / (1 - rule.momentum**self._taken)
            return mean / ((self._square / (1 - decay**self._taken)).sqrt() + rule.epsilon)
        divided = gradient / (self._square.sqrt() + rule.epsilon)
        self._momentum = rule.momentum * self._momentum + divided
        return self._momentum

    def _with_ones(self, features: Tensor) -> Tensor:
        if not self._biased:
            return features
        return torch.cat([features, features.new_ones(*features.shape[:-1], 1)], dim=-1)


def _guess(layer: LastLayer, rule: UpdateRule) -> float:
    """A learning rate to begin from: the bound of a squared error on the first batch."""
    if rule.second_moment is not None:
        return 1e-3
    features = layer.features[0]
    rows = features.reshape(-1, features.shape[-1])
    gram = rows @ rows.T if len(rows) < rows.shape[1] else rows.T @ rows
    largest = float(torch.linalg.eigvalsh(gram.double()).amax()) / len(features)
    return rule.largest_stable_rate(largest + (layer.bias is not None))
