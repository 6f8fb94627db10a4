r"""Linear layers that read the data itself: their outputs are linear along the ray.

At every point of the gradient's ray such a layer has the same inputs X, so that its outputs are

.. math:: X (W - s G)^\top = X W^\top - s X G^\top

two products for all points; and with output gradients D its weight gradient is :math:`D^\top X`,
whose inner products need no more than the m x m matrix :math:`X X^\top` of the m samples:

.. math:: \langle D^\top X, G \rangle = \langle D, X G^\top \rangle, \quad
          |D^\top X|^2 = \langle D, X X^\top D \rangle

So the layer's gradient is never computed, and its weight, which nothing else may read (see
`weights_are_private`), is not moved. On a fully connected net of four layers these are a fifth of
the arithmetic and a quarter of the memory traffic of a point.

Notation: W = weight, G = its gradient at the start, s = distance times learning rate.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from normscope.layers.transforms import forward_mode_active, tracing_active, transform_active
from normscope.losses import LOSSES
from normscope.probes.gradients import GradientComparison
from normscope.probes.shortcuts.linear import (
    WIDE,
    Products,
    Shortcut,
    linear_weights,
    record_inputs,
)

__all__ = ["InputLayers", "weights_are_private"]

_LEAST_DIFFERENCE = 1e-12  # relative to the squares, which are accurate to 1e-16
_ROWS = 128  # of a gradient converted to double precision at a time, to save memory


@dataclass(frozen=True)
class _Line:
    """Outputs of one layer along the ray, and what compares its gradients."""

    inputs: Tensor
    at_start: Tensor
    slope: Tensor
    exact_slope: Tensor
    gram: Tensor
    size: float

    def products(self, signals: Tensor) -> Products:
        """Return the inner products of the gradient here with itself and that of the start.

        In double precision, because the difference cancels.
        """
        exact = signals.double()
        inner = _inner(exact, self.exact_slope)
        norm = _inner(exact, self.gram @ exact)
        return inner, norm, (norm - 2 * inner + self.size).clamp_(min=0.0)


class InputLayers(Shortcut):
    """The layers of a model that read the data itself, found at the first point of a ray.

    Used for a layer with a trained bias that is called once, on a matrix of few samples.

    Args:
        start: the model's parameters, by name.
        gradient: at the start.
        rates: the learning rate of each parameter.
    """

    def __init__(
        self,
        start: Mapping[str, Tensor],
        gradient: Mapping[str, Tensor],
        rates: Mapping[str, float],
    ) -> None:
        super().__init__()
        self._start = start
        self._gradient = gradient
        self._rates = rates
        self._distance = 0.0
        self._inputs: dict[str, Tensor] = {}
        self._lines: dict[str, _Line] = {}

    @property
    def names(self) -> Collection[str]:
        """The weights that are neither moved nor differentiated."""
        return self._lines.keys()

    def record(self, model: nn.Module) -> None:
        """Record the first point; inside its context, before the pass."""
        for name, layer in linear_weights(model, self._gradient).items():
            if _is_worth_it(layer, self._gradient[name]):
                record_inputs(layer, partial(self._record_input, name))

    def _record_input(self, name: str, x: Tensor) -> None:
        self._calls[name] += 1
        if _is_data(x):
            self._inputs[name] = x.clone()

    def settle(self) -> None:
        """After the pass, compute the lines of the layers that were called once."""
        with torch.no_grad():
            for name, inputs in self._inputs.items():
                weight, gradient = self._start[name], self._gradient[name]
                if self._calls[name] == 1 and inputs.dtype == weight.dtype == gradient.dtype:
                    self._lines[name] = _line(inputs, weight, gradient)

    def set_distance(self, distance: float) -> None:
        """Set the distance of the next pass."""
        self._distance = distance

    def begin_pass(self, model: nn.Module, comparison: GradientComparison) -> None:
        """Replace the layers at another point; see `Shortcut`."""
        self._reset_counts()
        for name, layer in linear_weights(model, self.names).items():
            layer.__dict__["forward"] = partial(self._forward, name, layer, comparison)

    def disable(self) -> None:
        """Replace no layer from now on."""
        self._lines.clear()

    @property
    def is_valid(self) -> bool:
        """Whether each layer ran once on the same inputs and its weight was used nowhere else."""
        return all(self._is_plain(name) and not self._uses.get(name) for name in self.names)

    def _forward(
        self, name: str, layer: nn.Linear, comparison: GradientComparison, input: Tensor
    ) -> Tensor:
        line, bias = self._lines[name], layer.bias
        is_same = not input.requires_grad and torch.equal(input, line.inputs)
        self._calls[name] += 1 if is_same else 2  # disqualified
        step = self._distance * self._rates[name]
        output = torch.sub(line.at_start, line.slope, alpha=step) + bias
        hook = partial(self._receive, name, comparison)
        output.register_hook(hook)  # type: ignore[no-untyped-call]  # untyped in torch
        return output

    def _receive(self, name: str, comparison: GradientComparison, signals: Tensor) -> None:
        self._arrivals[name] += 1  # more than once if the loss itself differentiates
        line = self._lines[name]
        with torch.no_grad():
            products = line.products(signals.detach())
        if float(products[2]) < _LEAST_DIFFERENCE * line.size:
            self._arrivals[name] += 1  # only rounding is left
        comparison.add_products(name, products)


def weights_are_private(model: nn.Module, loss: object) -> bool:
    """Return whether each weight, and its gradient, is read by its own layer only.

    True for torch's and normscope's losses and modules without hooks; other code may read any
    weight, change output gradients, or differentiate itself.

    >>> weights_are_private(nn.Sequential(nn.Linear(1, 1)), "squared_error")
    True
    >>> weights_are_private(nn.Linear(1, 1), lambda output, target: output.sum())
    False
    """
    known = isinstance(loss, str) or any(loss is LOSSES[name] for name in LOSSES)
    return (
        (known or _is_of_torch(loss) or _is_of_torch(type(loss)))
        and all(map(_is_known, model.modules()))
        and not (transform_active() or forward_mode_active() or tracing_active())
    )


def _is_known(module: nn.Module) -> bool:
    ours = type(module).__module__.startswith("normscope.") or _is_of_torch(type(module))
    own = module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__
    return ours and not own


def _is_of_torch(code: object) -> bool:
    return getattr(code, "__module__", "").startswith(("torch.nn.modules.", "torch.nn.functional"))


def _is_data(x: Tensor) -> bool:
    """Return whether this is a matrix of few samples that no parameter affects."""
    is_matrix = type(x) is Tensor and x.layout is torch.strided and x.dim() == 2
    return is_matrix and not x.requires_grad and 4 * len(x) <= x.shape[1]


def _is_worth_it(layer: nn.Linear, gradient: Tensor) -> bool:
    """Return whether the layer is wide; its bias makes the backward pass reach it."""
    trained = layer.bias is not None and layer.bias.requires_grad
    return trained and gradient.numel() >= WIDE


def _line(inputs: Tensor, weight: Tensor, gradient: Tensor) -> _Line:
    exact = inputs.double()
    turned, size = exact.new_empty(len(gradient), len(inputs)), 0.0
    memory = exact.new_empty(min(_ROWS, len(gradient)), gradient.shape[1])  # allocating is slow
    for first in range(0, len(gradient), _ROWS):
        rows = gradient[first : first + _ROWS]
        some = memory[: len(rows)].copy_(rows)
        torch.mm(some, exact.T, out=turned[first : first + _ROWS])
        size += float(torch.linalg.vector_norm(some)) ** 2  # uses all threads, unlike torch.dot
    slope = turned.T.contiguous()
    at_start = inputs @ weight.T
    return _Line(inputs, at_start, slope.to(weight.dtype), slope, exact @ exact.T, size)


def _inner(one: Tensor, other: Tensor) -> Tensor:
    return torch.dot(one.reshape(-1), other.reshape(-1))
