"""The linear layer that makes a model's output, and what it is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope.problem.evaluate import Evaluator

__all__ = ["LastLayer", "belongs_to", "last_layer"]


@dataclass(frozen=True)
class LastLayer:
    """A linear last layer at a point, with its inputs on a few batches.

    Args:
        name: its qualified name.
        weight: (outputs, features).
        bias: (outputs,), trained with the weight; or None.
        features: what the layer is given on each batch, (samples, ..., features).
        targets: of each batch.
        offset: (outputs,), a bias that is not trained with the weight; or None.
    """

    name: str
    weight: Tensor
    bias: Tensor | None
    features: tuple[Tensor, ...]
    targets: tuple[Tensor, ...]
    offset: Tensor | None = None


@dataclass
class _Watch:
    """What the linear layers were given and gave in one forward pass, the last call of each."""

    calls: dict[str, tuple[Tensor, Tensor]]
    versions: dict[str, tuple[int, int]]

    def note(self, name: str, given: Tensor, made: Tensor) -> None:
        """A call; the order is that of the last calls."""
        self.calls.pop(name, None)
        self.calls[name] = (given, made)
        self.versions[name] = (_version(given), _version(made))

    def maker_of(self, output: Tensor) -> str | None:
        """The layer whose output is the model's, perhaps in another shape.

        What is overwritten after the call, as by ``layer(x).div_(10)``, has the same memory.
        """
        for name, (given, made) in reversed(self.calls.items()):
            if made.numel() == output.numel() and made.data_ptr() == output.data_ptr():
                return name if self.versions[name] == (_version(given), _version(made)) else None
        return None


def _version(tensor: Tensor) -> int:
    """How often a tensor's memory has been overwritten; tensors of inference mode do not count."""
    return 0 if tensor.is_inference() else tensor._version


def last_layer(evaluator: Evaluator, moved: Mapping[str, Tensor] | None = None) -> LastLayer | None:
    """The last layer of a model, if it is linear and its output is the model's.

    Args:
        evaluator: model, loss and data at a point; every batch is passed once.
        moved: parameters by name that stand at another point.

    Returns:
        The layer; None if the model ends otherwise, or shows no output.
    """
    if not evaluator.problem.has_outputs:
        return None
    point = evaluator.point | dict(moved or {})
    leaves = tuple(point[name] for name in evaluator.layout.names)
    features, targets, found = [], [], None
    for number, batch in evaluator.batches():
        with evaluator.scene(leaves, number, twice=False), torch.no_grad():
            watch, output = _watched(evaluator.problem.model, batch[0].clone())
        name = watch.maker_of(output) if isinstance(output, Tensor) else None
        if name is None or found not in (None, name):
            return None
        found = name
        given, made = watch.calls[name]
        # the same memory in another order, transposed, is another output
        if made.shape != output.shape or made.stride() != output.stride():
            return None
        features.append(given)
        targets.append(batch[1])
    if found is None:
        return None
    weight = f"{found}.weight".lstrip(".")
    if weight not in evaluator.layout.names or _is_tied(evaluator.problem.model, weight):
        return None
    # under autocast a layer is given half precision
    features = [given.to(point[weight].dtype) for given in features]
    bias, offset = _biases(evaluator, found, point)
    return LastLayer(found, point[weight], bias, tuple(features), tuple(targets), offset)


def belongs_to(layer: LastLayer, name: str) -> bool:
    """Whether a parameter, by its qualified name, is one of the layer's own."""
    return name.rpartition(".")[0] == layer.name


def _is_tied(model: nn.Module, name: str) -> bool:
    """Whether several modules hold a parameter; one module by several names is one."""
    own = model.get_parameter(name)
    held = (tensor for module in model.modules() for tensor in module.parameters(recurse=False))
    return sum(tensor is own for tensor in held) > 1


def _biases(
    evaluator: Evaluator, layer: str, point: Mapping[str, Tensor]
) -> tuple[Tensor | None, Tensor | None]:
    """The bias if it is trained with the layer; and if not: frozen, a buffer, another layer's."""
    model, name = evaluator.problem.model, f"{layer}.bias".lstrip(".")
    if name in evaluator.layout.names:
        return point[name], None
    held = model.get_submodule(layer).bias
    if not isinstance(held, Tensor):
        return None, None
    own = [*model.named_parameters(), *model.named_buffers()]
    names = {id(tensor): each for each, tensor in own}
    return None, point.get(names.get(id(held), ""), held.detach())


def _watched(model: nn.Module, inputs: Tensor) -> tuple[_Watch, Any]:
    watch = _Watch({}, {})
    with _hooked(model, watch):
        output = model(inputs)
    return watch, output


@contextmanager
def _hooked(model: nn.Module, watch: _Watch) -> Iterator[None]:
    """Note the calls of every linear layer; the hooks are gone afterwards."""
    handles = []

    def noting(name: str) -> Any:
        def note(module: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> None:
            watch.note(name, given[0], made)

        return note

    try:
        for name, module in model.named_modules():
            if type(module) is nn.Linear:
                handles.append(module.register_forward_hook(noting(name)))
        yield
    finally:
        for handle in handles:
            handle.remove()
