"""The linear layer that computes a model's output, and its stability limit when trained alone.

Its inputs are constant then: no pass through the network is needed, and many learning rates are
tried at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from normscope.learning_rate.stability import growth_limit
from normscope.learning_rate.thresholds import (
    EARLY_STEPS,
    GRID_POINTS,
    GRID_RATES,
    GRID_RATIO,
    GRID_SHIFTS,
    LAST_LAYER_STEPS,
    STEPS,
)
from normscope.learning_rate.update_rule import RuleSteps, UpdateRule
from normscope.problem.batch import Batch, copy_batch
from normscope.problem.evaluate import Evaluator
from normscope.problem.loss import WholeLoss
from normscope.problem.loss_state import loss_modules, stateless_loss
from normscope.problem.problem import Problem
from normscope.problem.recognition import known_loss
from normscope.training.loop import has_diverged

_FINE = GRID_RATIO ** (1 / GRID_POINTS)
_Value = TypeVar("_Value")
#: outputs (candidates, classes, samples * positions) -> losses (candidates,), their gradient
LossAndGradient: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class LastLayer:
    """A linear last layer at a point, with its inputs on a few batches.

    Args:
        name: its qualified name.
        weight: (outputs, features).
        bias: (outputs,), trained with the weight; or None.
        features: the layer's input on each batch, (samples, ..., features).
        targets: of each batch.
        offset: (outputs,), a bias that is not trained with the weight; or None.
    """

    name: str
    weight: Tensor
    bias: Tensor | None
    features: tuple[Tensor, ...]
    targets: tuple[Any, ...]
    offset: Tensor | None = None

    def owns(self, parameter: str) -> bool:
        """Return whether a parameter, by its qualified name, belongs to the layer."""
        return parameter.rpartition(".")[0] == self.name


def last_layer(evaluator: Evaluator, moved: Mapping[str, Tensor] | None = None) -> LastLayer | None:
    """Return the last layer of a model, if it is linear and its output is the model's.

    Args:
        evaluator: model, loss and data at a point; runs one forward pass for every batch.
        moved: parameters by name with other values.

    Returns:
        The layer; None if the model ends otherwise, or the loss does not show its output.
    """
    problem = evaluator.problem
    if isinstance(problem.loss, WholeLoss):
        return None
    point = evaluator.point | dict(moved or {})
    leaves = tuple(point[name] for name in evaluator.layout.names)
    features, targets, found = [], [], None
    for number, batch in evaluator.batches():
        with evaluator.isolated(leaves, number, twice=False), torch.no_grad():
            calls = _LinearCalls()
            output = calls.record(problem, copy_batch(batch))
        name = calls.layer_with_output(output) if isinstance(output, Tensor) else None
        if name is None or found not in (None, name):
            return None
        found = name
        features.append(calls.last[name][0])
        targets.append(problem.target_of(batch))
    if found is None:
        return None
    weight = f"{found}.weight".lstrip(".")
    if weight not in evaluator.layout.names or _is_tied(problem.model, weight):
        return None
    # under autocast the input has half precision
    features = [each.to(point[weight].dtype) for each in features]
    bias, offset = _biases(evaluator, found, point)
    return LastLayer(found, point[weight], bias, tuple(features), tuple(targets), offset)


@dataclass
class _LinearCalls:
    """Input and output of the last call of every linear layer in one forward pass."""

    last: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    versions: dict[str, tuple[int, int]] = field(default_factory=dict)

    def record(self, problem: Problem, batch: Batch) -> object:
        """Run the model and return its output; the hooks are removed afterwards."""
        handles = []
        try:
            for name, module in problem.model.named_modules():
                if type(module) is nn.Linear:
                    handles.append(module.register_forward_hook(self._hook(name)))
            return problem.output_on(batch)
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            self.last.pop(name, None)  # keep the order of the last calls
            self.last[name] = inputs[0], output
            self.versions[name] = _version(inputs[0]), _version(output)

        return note

    def layer_with_output(self, output: Tensor) -> str | None:
        """Return the layer whose output is the model's, in the same shape and memory.

        Tensors that were overwritten after the call, as by ``layer(x).div_(10)``, or transposed
        share the memory, but are not the layer's output.
        """
        for name, (given, made) in reversed(self.last.items()):
            if made.numel() == output.numel() and made.data_ptr() == output.data_ptr():
                same = made.shape == output.shape and made.stride() == output.stride()
                unchanged = self.versions[name] == (_version(given), _version(made))
                return name if same and unchanged else None
        return None


def _version(tensor: Tensor) -> int:
    """Return how often a tensor was overwritten; inference tensors do not count it."""
    return 0 if tensor.is_inference() else tensor._version


def _is_tied(model: nn.Module, name: str) -> bool:
    """Return whether several modules hold a parameter; one module with several names is one."""
    own = model.get_parameter(name)
    held = (tensor for module in model.modules() for tensor in module.parameters(recurse=False))
    return sum(tensor is own for tensor in held) > 1


def _biases(
    evaluator: Evaluator, layer: str, point: Mapping[str, Tensor]
) -> tuple[Tensor | None, Tensor | None]:
    """Return the bias trained with the layer, and one that is frozen, a buffer or shared."""
    model, name = evaluator.problem.model, f"{layer}.bias".lstrip(".")
    if name in evaluator.layout.names:
        return point[name], None
    held = model.get_submodule(layer).bias
    if not isinstance(held, Tensor):
        return None, None
    own = [*model.named_parameters(), *model.named_buffers()]
    names = {id(tensor): each for each, tensor in own}
    return None, point.get(names.get(id(held), ""), held.detach())


def last_layer_limit(
    layer: LastLayer, problem: Problem, rule: UpdateRule, near: float | None = None
) -> float | None:
    """Return the stability limit of a last layer that is trained alone.

    The definition is that of `normscope.learning_rate.is_unstable`, with the batches of ``layer``
    in turn. All rates are on one grid, six to a factor of four: first those around a rate that is
    near, such as the bound of a squared error; or a coarse grid, then the points between.

    Args:
        layer: weights, inputs and targets.
        problem: for its loss.
        rule: of the optimizer.
        near: a learning rate at most four times above the limit or two below, if one is known; a
            wrong one costs time, but does not change the answer.

    Returns:
        The limit to about 12 %; None if there is none up to a million times the bound.
    """
    training, guess = LastLayerTraining(layer, problem, rule), _squared_error_bound(layer, rule)
    lowest = guess / 2
    near = _scaled_bound(layer, problem, rule, guess) if near is None else near
    if near is not None and near > 0:
        center = round(math.log(near / lowest, _FINE))
        around = [lowest * _FINE**step for step in range(center - 6, center + 4)]
        stable = training.stable(around)
        found = _between(around, stable) if stable[0] else _limit_below(training, around[0])
        if found is not None:
            return found
    for _ in range(GRID_SHIFTS):  # a grid that starts above the limit or ends below it is shifted
        grid = [lowest * GRID_RATIO**step for step in range(GRID_RATES)]
        for steps in (EARLY_STEPS, STEPS):  # rates far too large fail within 20 steps
            stable = training.stable(grid, steps)
            if stable[0] and not all(stable):
                found = _limit_below(training, grid[stable.index(False)])
                if found is not None:
                    return found
            if not stable[0]:
                break
        lowest = grid[-1] if stable[0] else lowest / GRID_RATIO ** (GRID_RATES - 1)
    return None


def breaks_late(layer: LastLayer, problem: Problem, rule: UpdateRule, limit: float) -> bool:
    """Return whether twice the limit of a last layer is stable for 15 steps.

    What momentum and the noise of small batches build up then decides, rather than the curvature.
    The whole network behaves otherwise: its features follow what the last layer does.

    Args:
        layer: weights, inputs and targets.
        problem: for its loss.
        rule: of the optimizer.
        limit: as `last_layer_limit` returns it.
    """
    return LastLayerTraining(layer, problem, rule).stable([2 * limit], LAST_LAYER_STEPS)[0]


def _limit_below(training: LastLayerTraining, high: float) -> float | None:
    """Return the limit below an unstable rate, one coarse step down after another.

    The first step need not contain it: a rate stable for 20 steps may be unstable within 100.
    None if no rate far below is stable either.
    """
    for _ in range(GRID_RATES):
        low = high / GRID_RATIO
        inner = [low * _FINE**step for step in range(GRID_POINTS)]
        found = _between([*inner, high], [*training.stable(inner), False])
        if found is not None:
            return found
        high = low
    return None


def _between(rates: Sequence[float], stable: Sequence[bool]) -> float | None:
    """Return the geometric mean of the first stable and unstable neighbours."""
    if not stable[0] or all(stable):
        return None
    first = list(stable).index(False)
    return math.sqrt(rates[first - 1] * rates[first])


def _squared_error_bound(layer: LastLayer, rule: UpdateRule) -> float:
    """Return a rate to start from: the bound of a squared error on the first batch."""
    if rule.second_moment is not None:
        return 1e-3
    features = layer.features[0]
    rows = features.reshape(-1, features.shape[-1])
    gram = rows @ rows.T if len(rows) < rows.shape[1] else rows.T @ rows
    largest = float(torch.linalg.eigvalsh(gram.double()).amax()) / len(features)
    return rule.largest_stable_rate(largest + (layer.bias is not None))


def _scaled_bound(
    layer: LastLayer, problem: Problem, rule: UpdateRule, bound: float
) -> float | None:
    """Return the bound in the scale of the squared error; None for other losses and rules."""
    features, target = layer.features[0], layer.targets[0]
    known = known_loss(problem.loss, features @ layer.weight.T, target)
    if known is None or known.kind != "squares" or rule.second_moment is not None:
        return None
    return bound / (known.scale * len(features))


class LastLayerTraining:
    """Trains a last layer on the batches in turn, with constant inputs.

    Args:
        layer: weights, inputs and targets.
        problem: for its loss.
        rule: of the optimizer.
    """

    def __init__(self, layer: LastLayer, problem: Problem, rule: UpdateRule) -> None:
        self._rule, self._limit = rule, growth_limit(problem.loss)
        self._losses = [
            losses_and_gradients(problem, features @ layer.weight.T, target)  # for its shape
            for features, target in zip(layer.features, layer.targets, strict=True)
        ]
        # the bias is the weight of one more feature that is always one
        columns = [layer.weight] if layer.bias is None else [layer.weight, layer.bias.unsqueeze(1)]
        self._weights = torch.cat(columns, dim=1).detach()
        biased = layer.bias is not None
        self._rows = [_rows(each, with_ones=biased) for each in layer.features]
        self._columns = [each.T.contiguous() for each in self._rows]
        self._offset = None if layer.offset is None else layer.offset.detach().view(1, -1, 1)

    def stable(self, rates: Sequence[float], steps: int = STEPS) -> list[bool]:
        """Return for each learning rate whether it trains the layer without an instability.

        Args:
            rates: to try, all at once.
            steps: of each run.
        """
        start = self._weights
        weights = start.expand(len(rates), *start.shape).clone()  # (rates, outputs, inputs)
        column = torch.tensor(rates, dtype=start.dtype, device=start.device).view(-1, 1, 1)
        updates = RuleSteps(self._rule)
        running, first = list(range(len(rates))), [math.inf] * len(rates)
        for step in range(steps):
            number = step % len(self._losses)
            losses, gradient = self._losses[number](self._outputs(weights, number))
            values = losses.tolist()  # comparing a few numbers is faster in Python
            first = values if step == 0 else first
            kept = [
                not has_diverged(loss, start, self._limit)
                for loss, start in zip(values, first, strict=True)
            ]
            if not all(kept):
                running, first = _chosen(running, kept), _chosen(first, kept)
                mask = torch.tensor(kept, device=weights.device)
                weights, column, gradient = weights[mask], column[mask], gradient[mask]
                updates.keep(mask)
            if not running:
                break
            by_weights = (gradient.flatten(0, 1) @ self._rows[number]).view_as(weights)
            updates.apply(weights, by_weights, column)
        return [number in running for number in range(len(rates))]

    def _outputs(self, weights: Tensor, number: int) -> Tensor:
        """Return the outputs on a batch, (rates, outputs, samples * positions)."""
        rates, outputs, size = weights.shape
        made = (weights.view(-1, size) @ self._columns[number]).view(rates, outputs, -1)
        return made if self._offset is None else made + self._offset


def _chosen(values: list[_Value], kept: list[bool]) -> list[_Value]:
    return [value for value, keep in zip(values, kept, strict=True) if keep]


def _rows(features: Tensor, with_ones: bool) -> Tensor:
    rows = features.flatten(0, -2)
    return torch.cat([rows, rows.new_ones(len(rows), 1)], dim=1) if with_ones else rows


def losses_and_gradients(problem: Problem, output: Tensor, target: Tensor) -> LossAndGradient:
    """Return a function of many candidates' outputs on one batch.

    Args:
        problem: for its loss.
        output: of one candidate, (samples, ..., classes).
        target: of the batch.

    Returns:
        A function from outputs (candidates, classes, samples * positions), the layout in which
        products of many small matrices are fastest, to losses (candidates,) and their gradient in
        the shape of the outputs: in closed form for cross-entropy and squared errors of vectors,
        else by autograd.
    """
    known = known_loss(problem.loss, output, target)
    if known is None or output.dim() != 2 or known.smoothing:
        return _by_autograd(problem, target, output.shape)
    if known.kind == "cross_entropy":
        return _cross_entropy(target.long(), output.shape[1], known.scale, output.dtype)
    if target.dim() == 1 and not target.is_floating_point():  # labels
        target = functional.one_hot(target.long(), output.shape[1])
    return _squared_error(target.to(output.dtype).T.contiguous(), known.scale)


def _cross_entropy(
    target: Tensor, classes: int, scale: float, dtype: torch.dtype
) -> LossAndGradient:
    r"""Cross-entropy: :math:`\partial L / \partial f = c\,(\mathrm{softmax}(f) - e_y)`."""
    labels = target.view(1, 1, -1)
    one_hot = functional.one_hot(target, classes).to(dtype).T.contiguous()

    def evaluate(outputs: Tensor) -> tuple[Tensor, Tensor]:
        logarithms = outputs.log_softmax(1)
        picked = logarithms.gather(1, labels.expand(len(outputs), 1, -1))
        losses = _total(picked).mul_(-scale)
        return losses, logarithms.exp_().sub_(one_hot).mul_(scale)

    return evaluate


def _squared_error(target: Tensor, scale: float) -> LossAndGradient:
    r"""Squared error: :math:`\partial L / \partial f = c\,(f - y)`."""

    def evaluate(outputs: Tensor) -> tuple[Tensor, Tensor]:
        difference = outputs - target
        losses = _total(_widened(difference).square()).mul_(0.5 * scale)
        return losses, difference.mul_(scale)

    return evaluate


def _by_autograd(problem: Problem, target: Tensor, shape: torch.Size) -> LossAndGradient:
    """Any loss, candidate by candidate."""
    loss = stateless_loss(problem.loss, loss_modules(problem.loss, problem.model))
    steady = Problem(problem.model, loss, problem.data)

    def evaluate(outputs: Tensor) -> tuple[Tensor, Tensor]:
        candidates = outputs.transpose(1, 2).reshape(-1, *shape).requires_grad_()
        with torch.enable_grad():
            losses = torch.stack([steady.loss_of(each, target) for each in candidates])
            (gradient,) = torch.autograd.grad(losses.sum(), candidates)
        return losses.detach(), gradient.flatten(1, -2).transpose(1, 2)

    return evaluate


def _widened(values: Tensor) -> Tensor:
    """Convert to float32 at least: squares and sums overflow half precision."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _total(values: Tensor) -> Tensor:
    return _widened(values).sum((1, 2))
