"""The linear layer that makes a model's output, and what it is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope.curvature.evaluation import Evaluator

__all__ = ["LastLayer", "last_layer"]


@dataclass(frozen=True)
class LastLayer:
    """A linear last layer at a point, with its inputs on a few batches.

    Args:
        name: its qualified name.
        weight: (outputs, features).
        bias: (outputs,), or None.
        features: what the layer is given on each batch, (samples, ..., features).
        targets: of each batch.
    """

    name: str
    weight: Tensor
    bias: Tensor | None
    features: tuple[Tensor, ...]
    targets: tuple[Tensor, ...]


@dataclass
class _Watch:
    """What the linear layers were given and gave in one forward pass, the last call of each."""

    calls: dict[str, tuple[Tensor, Tensor]]

    def maker_of(self, output: Tensor) -> str | None:
        """The layer whose output is the model's, perhaps in another shape."""
        for name, (_, made) in reversed(self.calls.items()):
            if made.numel() == output.numel() and made.data_ptr() == output.data_ptr():
                return name
        return None


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
        with evaluator.scene(leaves, number), torch.no_grad():
            watch, output = _watched(evaluator.problem.model, batch[0].clone())
        name = watch.maker_of(output) if isinstance(output, Tensor) else None
        if name is None or found not in (None, name):
            return None
        found = name
        given, made = watch.calls[name]
        if made.shape != output.shape:
            return None
        features.append(given)
        targets.append(batch[1])
    if found is None:
        return None
    weight, bias = f"{found}.weight".lstrip("."), f"{found}.bias".lstrip(".")
    if weight not in evaluator.layout.names:
        return None
    return LastLayer(found, point[weight], point.get(bias), tuple(features), tuple(targets))


def _watched(model: nn.Module, inputs: Tensor) -> tuple[_Watch, Any]:
    watch = _Watch({})
    with _hooked(model, watch):
        output = model(inputs)
    return watch, output


@contextmanager
def _hooked(model: nn.Module, watch: _Watch) -> Iterator[None]:
    """Note the calls of every linear layer; the hooks are gone afterwards."""
    handles = []

    def noting(name: str) -> Any:
        def note(module: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> None:
            watch.calls.pop(name, None)  # the order is that of the last calls
            watch.calls[name] = (given[0], made)

        return note

    try:
        for name, module in model.named_modules():
            if type(module) is nn.Linear:
                handles.append(module.register_forward_hook(noting(name)))
        yield
    finally:
        for handle in handles:
            handle.remove()
