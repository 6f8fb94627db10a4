r"""Gradients of wide linear layers, compared by their factors.

The weight gradient of a linear layer is a product of two thin matrices, the output gradients and
the inputs of the m samples: :math:`D^\top X`. Inner products of two such gradients are sums over
m x m matrices, which for few samples and many units cost less than the gradient. Where they do
not, or the factors at the start are unknown, the product goes into a reused buffer: allocating new
memory for each gradient takes longer than reading it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from normscope.probes.gradients import GradientComparison
from normscope.probes.shortcuts.linear import (
    WIDE,
    Products,
    Shortcut,
    linear_weights,
    record_inputs,
)

__all__ = ["FactoredGradients"]


@dataclass
class _Factors:
    """Inputs and output gradients of one layer at the start, with their Gram matrices."""

    inputs: Tensor
    signals: Tensor
    inputs_gram: Tensor
    signals_gram: Tensor


class FactoredGradients(Shortcut):
    """The linear layers of a model whose gradients are compared by their factors.

    Used for a layer that is called once, on a matrix, and whose weight is used nowhere else: the
    product of the factors is the gradient.

    Args:
        buffer: returns a reused matrix of so many rows and columns, like a tensor.
    """

    def __init__(self, buffer: Callable[[int, int, Tensor], Tensor]) -> None:
        super().__init__()
        self._buffer = buffer
        self._first_calls: Counter[str] = Counter()
        self._inputs: dict[str, tuple[Tensor, int]] = {}  # with their version
        self._signals: dict[str, Tensor] = {}
        self._known: dict[str, _Factors | None] = {}  # None: to be multiplied out

    @property
    def names(self) -> Collection[str]:
        """The weights whose gradients are not needed."""
        return self._known.keys()

    def record(self, model: nn.Module, trained: Collection[str]) -> None:
        """Record the factors at the start; inside its context, before the pass."""
        layers = linear_weights(model, trained)
        self._replace_forward(layers, self._signals.__setitem__, _is_worth_it)

    def settle(self, gradient: Mapping[str, Tensor]) -> None:
        """After the pass, keep the layers whose factors multiply to the gradient."""
        for name, signals in self._signals.items():
            inputs, _ = self._inputs[name]
            if self._is_plain(name) and _is_product(gradient.get(name), signals, inputs):
                grams = inputs @ inputs.T, signals @ signals.T
                self._known[name] = _Factors(inputs, signals, *grams)

    def record_first_point(self, model: nn.Module, trained: Collection[str]) -> None:
        """Record the first point of a ray, to find layers to multiply out at the others."""
        for name, layer in linear_weights(model, trained).items():
            if layer.weight.numel() >= WIDE:
                record_inputs(layer, partial(self._count_first_call, name, layer))

    def _count_first_call(self, name: str, layer: nn.Linear, x: Tensor) -> None:
        self._first_calls[name] += 1 if _reaches(x, layer) else 2  # disqualified

    def multiply_out(self, excluded: Collection[str]) -> None:
        """After the first point, add the layers that were called once and are not excluded."""
        for name in excluded:
            self._known.pop(name, None)
        for name, calls in self._first_calls.items():
            if calls == 1 and name not in excluded:
                self._known.setdefault(name, None)

    def begin_pass(self, model: nn.Module, comparison: GradientComparison) -> None:
        """Prepare a pass at another point; see `Shortcut`."""
        self._reset_counts()
        self._inputs.clear()
        layers = linear_weights(model, self.names)
        self._replace_forward(layers, partial(self._compare, comparison), _reaches)

    def _compare(self, comparison: GradientComparison, name: str, signals: Tensor) -> None:
        inputs, version = self._inputs[name]
        if not (self._is_plain(name) and inputs._version == version):
            self._calls[name] += 1  # not one call with one output gradient: disqualified
            return
        start = self._known[name]
        if start is not None:
            comparison.add_products(name, _products(start, inputs, signals))
            return
        product = self._buffer(signals.shape[1], inputs.shape[1], inputs)
        comparison.add(name, torch.mm(signals.T, inputs, out=product))

    def disable(self) -> None:
        """Leave all weights to autograd from now on."""
        self._known.clear()

    @property
    def is_valid(self) -> bool:
        """Whether each layer ran once, got one output gradient, and its weight was used once."""
        return all(self._is_plain(name) and self._uses.get(name) == 1 for name in self.names)

    def _replace_forward(
        self,
        layers: Mapping[str, nn.Linear],
        arrived: Callable[[str, Tensor], None],
        is_wanted: Callable[[Tensor, nn.Linear], bool],
    ) -> None:
        for name, layer in layers.items():
            layer.__dict__["forward"] = partial(self._forward, name, layer, arrived, is_wanted)

    def _forward(
        self,
        name: str,
        layer: nn.Linear,
        arrived: Callable[[str, Tensor], None],
        is_wanted: Callable[[Tensor, nn.Linear], bool],
        input: Tensor,
    ) -> Tensor:
        self._calls[name] += 1
        output = functional.linear(input, layer.weight, layer.bias)
        if is_wanted(input, layer) and output.requires_grad and self._calls[name] == 1:
            self._inputs[name] = input.detach(), input._version
            hook = partial(self._receive, name, arrived)
            output.register_hook(hook)  # type: ignore[no-untyped-call]  # untyped in torch
        return output

    def _receive(self, name: str, arrived: Callable[[str, Tensor], None], signals: Tensor) -> None:
        self._arrivals[name] += 1  # more than once if the loss itself differentiates
        with torch.no_grad():
            arrived(name, signals.detach())


def _reaches(x: Tensor, layer: nn.Linear) -> bool:
    """Return whether the layer is one matrix product that the backward pass reaches.

    Once autograd skips the weight, it needs a trained bias or an earlier trained layer to get here.
    """
    reached = x.requires_grad or (layer.bias is not None and layer.bias.requires_grad)
    is_matrix = x.layout is torch.strided and x.dim() == 2
    return reached and is_matrix and x.dtype == layer.weight.dtype


def _is_worth_it(x: Tensor, layer: nn.Linear) -> bool:
    """Return whether five m x m products are cheaper than the gradient of a reached layer."""
    rows, columns = layer.weight.shape
    is_wide = rows * columns >= WIDE
    return is_wide and _reaches(x, layer) and 3 * len(x) * (rows + columns) < rows * columns


def _is_product(gradient: Tensor | None, signals: Tensor, inputs: Tensor) -> bool:
    """Whether a gradient is the product of the factors, by its action on one vector."""
    if gradient is None or signals.shape[0] != inputs.shape[0]:
        return False
    if not gradient.dtype == signals.dtype == inputs.dtype:  # autocast was at work
        return False
    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(inputs.shape[1], generator=generator).to(inputs)
    expected = signals.T @ (inputs @ vector)
    tolerance = torch.finfo(inputs.dtype).eps ** 0.5
    error = torch.linalg.vector_norm(gradient @ vector - expected)
    return bool(error <= tolerance * torch.linalg.vector_norm(expected))


def _products(start: _Factors, inputs: Tensor, signals: Tensor) -> Products:
    r"""Inner products of the gradients G' = D'^T X' here and G = D^T X at the start.

    .. math:: G' - G = (D' - D)^\top X' + D^\top (X' - X)

    so that a small difference is a sum of small terms and not lost in rounding.
    """
    other_inputs, other_signals = inputs - start.inputs, signals - start.signals
    across = other_signals @ start.signals.T
    moved = other_inputs @ start.inputs.T
    change, turned = other_inputs @ other_inputs.T, other_signals @ other_signals.T
    whole = start.inputs_gram + moved + moved.T + change  # X' X'^T
    inner = _inner(start.signals_gram + across, start.inputs_gram + moved)
    # D'D'^T directly: computed from its parts it would cancel where D' is small
    norm = _inner(signals @ signals.T, whole)
    difference = (
        _inner(turned, whole)
        + 2 * _inner(across, moved.T + change)
        + _inner(start.signals_gram, change)
    )
    return inner, norm, difference


def _inner(one: Tensor, other: Tensor) -> Tensor:
    return torch.dot(one.reshape(-1).double(), other.reshape(-1).double())
