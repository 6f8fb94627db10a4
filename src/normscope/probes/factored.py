r"""Gradients of wide linear layers, compared by their factors.

The gradient by the weight of a linear layer is a product of two thin matrices, the signals that
come back and the inputs of the m samples: :math:`D^\top X`. Inner products of two such gradients
are sums over m x m matrices, which for few samples and many units cost less than the gradient.
Where they do not, or the factors at the start are not known, the product goes into memory that is
kept: torch would ask the system for new memory each time, which takes longer than to read it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from normscope.probes.comparison import Comparison
from normscope.probes.linear_layers import (
    WIDE,
    Products,
    linear_weights,
    watch_inputs,
)
from normscope.probes.shortcut import Shortcut

__all__ = ["FactoredGradients"]


@dataclass
class _Factors:
    """Inputs and backward signals of one layer at the start, with their Gram matrices."""

    inputs: Tensor
    signals: Tensor
    inputs_gram: Tensor
    signals_gram: Tensor


class FactoredGradients(Shortcut):
    """The linear layers of a model whose gradients are compared by their factors.

    Used for a layer that is called once, on a matrix, and whose weight is used nowhere else: the
    product of the factors is the gradient.

    Args:
        memory: gives a matrix of so many rows and columns to be overwritten, of a tensor's type.
    """

    def __init__(self, memory: Callable[[int, int, Tensor], Tensor]) -> None:
        super().__init__()
        self._memory = memory
        self._looks: Counter[str] = Counter()
        self._inputs: dict[str, tuple[Tensor, int]] = {}  # with their version
        self._signals: dict[str, Tensor] = {}
        self._known: dict[str, _Factors | None] = {}  # None: to be multiplied out

    @property
    def names(self) -> Collection[str]:
        """The weights whose gradients need not be taken."""
        return self._known.keys()

    def record(self, model: nn.Module, trained: Collection[str]) -> None:
        """Watch the start; inside its scene, before the pass."""
        layers = linear_weights(model, trained)
        self._watch(layers, self._signals.__setitem__, _is_worth_it)

    def settle(self, gradient: Mapping[str, Tensor]) -> None:
        """After the pass: keep the layers whose factors are the whole of the gradient."""
        for name, signals in self._signals.items():
            inputs, _ = self._inputs[name]
            if self._is_plain(name) and _is_product(gradient.get(name), signals, inputs):
                grams = inputs @ inputs.T, signals @ signals.T
                self._known[name] = _Factors(inputs, signals, *grams)

    def look(self, model: nn.Module, trained: Collection[str]) -> None:
        """Watch the first point of a ray, for layers to multiply out at the others."""
        for name, layer in linear_weights(model, trained).items():
            if layer.weight.numel() >= WIDE:
                watch_inputs(layer, partial(self._looked, name, layer))

    def _looked(self, name: str, layer: nn.Linear, x: Tensor) -> None:
        self._looks[name] += 1 if _comes_by(x, layer) else 2  # not to be trusted

    def multiply_out(self, but: Collection[str]) -> None:
        """After it: those that were called once, but for some that others compare."""
        for name in but:
            self._known.pop(name, None)
        for name, looks in self._looks.items():
            if looks == 1 and name not in but:
                self._known.setdefault(name, None)

    def meet(self, model: nn.Module, comparison: Comparison) -> None:
        """Watch another point; see `Shortcut`."""
        self._start_counting()
        self._inputs.clear()
        layers = linear_weights(model, self.names)
        self._watch(layers, partial(self._arrived, comparison), _comes_by)

    def _arrived(self, comparison: Comparison, name: str, signals: Tensor) -> None:
        inputs, version = self._inputs[name]
        if not (self._is_plain(name) and inputs._version == version):
            self._calls[name] += 1  # not one call with one answer: not to be trusted
            return
        start = self._known[name]
        if start is not None:
            comparison.add(name, _products(start, inputs, signals))
            return
        product = self._memory(signals.shape[1], inputs.shape[1], inputs)
        comparison.see(name, torch.mm(signals.T, inputs, out=product))

    def forget(self) -> None:
        """Compare by the gradients that torch takes from now on."""
        self._known.clear()

    @property
    def is_valid(self) -> bool:
        """Whether each layer ran once since `meet`, was answered once, and its weight used once."""
        return all(self._is_plain(name) and self._uses.get(name) == 1 for name in self.names)

    def _watch(
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
            hook = partial(self._answered, name, arrived)
            output.register_hook(hook)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return output

    def _answered(self, name: str, arrived: Callable[[str, Tensor], None], signals: Tensor) -> None:
        self._arrivals[name] += 1  # more than once if the loss differentiates by itself
        with torch.no_grad():
            arrived(name, signals.detach())


def _comes_by(x: Tensor, layer: nn.Linear) -> bool:
    """Whether the layer is one matrix product on which the signals come back.

    Without a bias or an earlier layer that is trained nothing would be differentiated by at this
    place once the weight is not.
    """
    reached = x.requires_grad or (layer.bias is not None and layer.bias.requires_grad)
    is_matrix = x.layout is torch.strided and x.dim() == 2
    return reached and is_matrix and x.dtype == layer.weight.dtype


def _is_worth_it(x: Tensor, layer: nn.Linear) -> bool:
    """Whether five m x m products are cheaper than the gradient, and the pass comes by here."""
    rows, columns = layer.weight.shape
    is_wide = rows * columns >= WIDE
    return is_wide and _comes_by(x, layer) and 3 * len(x) * (rows + columns) < rows * columns


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
