r"""Gradients of wide linear layers, compared without being multiplied out.

The gradient by the weight of a linear layer is a product of two thin matrices, the signals that
come back and the inputs of the m samples: :math:`D^\top X`. Inner products of two such gradients
are sums over m x m matrices, which for few samples and many units cost less than the gradient.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from normscope.probes.linear_layers import Products, linear_weights, uses_in_graph

__all__ = ["FactoredGradients"]

_LEAST_ENTRIES = 2**14  # of a weight


@dataclass
class _Factors:
    """Inputs and backward signals of one layer at the start, with their Gram matrices."""

    inputs: Tensor
    signals: Tensor
    inputs_gram: Tensor
    signals_gram: Tensor


class FactoredGradients:
    """The linear layers of a model whose gradients are compared by their factors.

    Used for a layer that is called once, on a matrix, where that is cheaper, and of which the
    start shows that its weight is used nowhere else: the product of the factors is the gradient.
    """

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()
        self._arrivals: Counter[str] = Counter()
        self._uses: Mapping[str, int] = {}
        self._inputs: dict[str, tuple[Tensor, int]] = {}  # with their version
        self._signals: dict[str, Tensor] = {}
        self._known: dict[str, _Factors] = {}

    @property
    def names(self) -> Collection[str]:
        """The weights whose gradients need not be taken."""
        return self._known.keys()

    def record(self, model: nn.Module, trained: Collection[str]) -> None:
        """Watch the start; inside its scene, before the pass."""
        self._watch(linear_weights(model, trained), self._signals.__setitem__)

    def settle(self, gradient: Mapping[str, Tensor]) -> None:
        """After the pass: keep the layers whose factors are the whole of the gradient."""
        for name, signals in self._signals.items():
            inputs, _ = self._inputs[name]
            if self._is_plain(name) and _is_product(gradient.get(name), signals, inputs):
                grams = inputs @ inputs.T, signals @ signals.T
                self._known[name] = _Factors(inputs, signals, *grams)

    def meet(self, model: nn.Module, see: Callable[[str, Products], None]) -> None:
        """Watch another point; inside its scene, before the pass.

        Args:
            model: the model.
            see: called for each of ``names`` with its inner products.
        """
        self._calls.clear()
        self._arrivals.clear()
        self._inputs.clear()
        self._uses = {}

        def arrived(name: str, signals: Tensor) -> None:
            inputs, version = self._inputs[name]
            if self._is_plain(name) and inputs._version == version:
                see(name, _products(self._known[name], inputs, signals))
            else:
                self._calls[name] += 1  # not one call with one answer: not to be trusted

        self._watch(linear_weights(model, self.names), arrived)

    def inspect(self, loss: Tensor, weights: Mapping[str, Tensor]) -> None:
        """Count in the graph of a loss how often each of ``names`` is used; before running back.

        Args:
            loss: with its graph.
            weights: the leaves of the pass, by name.
        """
        self._uses = uses_in_graph(loss, {name: weights[name] for name in self.names})

    def forget(self, names: Collection[str] | None = None) -> None:
        """Compare these, or all, by the gradients themselves from now on."""
        for name in list(self._known if names is None else names):
            self._known.pop(name, None)

    @property
    def is_valid(self) -> bool:
        """Whether each layer ran once since `meet`, was answered once, and its weight used once."""
        return all(self._is_plain(name) and self._uses.get(name) == 1 for name in self.names)

    def _is_plain(self, name: str) -> bool:
        return self._calls[name] == 1 and self._arrivals[name] == 1

    def _watch(
        self, layers: Mapping[str, nn.Linear], arrived: Callable[[str, Tensor], None]
    ) -> None:
        for name, layer in layers.items():
            layer.__dict__["forward"] = partial(self._forward, name, layer, arrived)

    def _forward(
        self, name: str, layer: nn.Linear, arrived: Callable[[str, Tensor], None], input: Tensor
    ) -> Tensor:
        self._calls[name] += 1
        output = functional.linear(input, layer.weight, layer.bias)
        if _is_worth_it(input, layer) and output.requires_grad and self._calls[name] == 1:
            self._inputs[name] = input.detach(), input._version
            hook = partial(self._answered, name, arrived)
            output.register_hook(hook)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return output

    def _answered(self, name: str, arrived: Callable[[str, Tensor], None], signals: Tensor) -> None:
        self._arrivals[name] += 1  # more than once if the loss differentiates by itself
        with torch.no_grad():
            arrived(name, signals.detach())


def _is_worth_it(x: Tensor, layer: nn.Linear) -> bool:
    """Whether five m x m products are cheaper than the gradient, and the pass comes by here.

    Without a bias or an earlier layer that is trained nothing would be differentiated by at this
    place once the weight is not.
    """
    rows, columns = layer.weight.shape
    if x.dim() != 2 or rows * columns < _LEAST_ENTRIES or x.dtype != layer.weight.dtype:
        return False
    reached = x.requires_grad or (layer.bias is not None and layer.bias.requires_grad)
    return reached and 3 * len(x) * (rows + columns) < rows * columns


def _is_product(gradient: Tensor | None, signals: Tensor, inputs: Tensor) -> bool:
    """Whether a gradient is the product of the factors, by its action on one vector."""
    if gradient is None or signals.shape[0] != inputs.shape[0]:
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

    so that a small difference is made of small terms and not lost in rounding.
    """
    other_inputs, other_signals = inputs - start.inputs, signals - start.signals
    across = other_signals @ start.signals.T
    moved = other_inputs @ start.inputs.T
    change, turned = other_inputs @ other_inputs.T, other_signals @ other_signals.T
    whole = start.inputs_gram + moved + moved.T + change  # X' X'^T
    inner = _inner(start.signals_gram + across, start.inputs_gram + moved)
    # not by D'D'^T from the parts: nothing is left of it where the signals have become small
    norm = _inner(signals @ signals.T, whole)
    difference = (
        _inner(turned, whole)
        + 2 * _inner(across, moved.T + change)
        + _inner(start.signals_gram, change)
    )
    return inner, norm, difference


def _inner(one: Tensor, other: Tensor) -> Tensor:
    return torch.dot(one.reshape(-1).double(), other.reshape(-1).double())
