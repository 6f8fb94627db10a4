"""The linear layer that computes a model's output, with its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from normscope.problem.batch import Batch, copy_batch
from normscope.problem.evaluate import Evaluator
from normscope.problem.loss import WholeLoss
from normscope.problem.problem import Problem


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
