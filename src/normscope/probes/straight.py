r"""Linear layers that see the data itself: what they give is a straight line along the ray.

At every point of the gradient's ray such a layer has the same inputs X, so that its outputs are

.. math:: X (W - s G)^\top = X W^\top - s X G^\top

two products for all points; and with signals D coming back its gradient is :math:`D^\top X`, whose
inner products need no more than the m x m matrix :math:`X X^\top` of the m samples:

.. math:: \langle D^\top X, G \rangle = \langle D, X G^\top \rangle, \quad
          |D^\top X|^2 = \langle D, X X^\top D \rangle

So the layer's gradient is never multiplied out, and its weight, which nobody else may look at (see
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
from normscope.probes.comparison import Comparison
from normscope.probes.linear_layers import (
    WIDE,
    Products,
    linear_weights,
    watch_inputs,
)
from normscope.probes.shortcut import Shortcut
from normscope.problem.loss import LOSSES

__all__ = ["StraightLayers", "weights_are_private"]

_LEAST_DIFFERENCE = 1e-12  # of the squares, which are known to 1e-16
_ROWS = 128  # of a gradient, in double precision at a time: it takes no room worth speaking of


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
        """Inner products of the gradient here with itself and that of the start.

        In double precision: the difference is what is left of larger numbers.
        """
        exact = signals.double()
        inner = _inner(exact, self.exact_slope)
        norm = _inner(exact, self.gram @ exact)
        return inner, norm, (norm - 2 * inner + self.size).clamp_(min=0.0)


class StraightLayers(Shortcut):
    """The layers of a model that see the data itself, found at the first point of a ray.

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
        """The weights that need neither be moved nor differentiated by."""
        return self._lines.keys()

    def record(self, model: nn.Module) -> None:
        """Watch the first point; inside its scene, before the pass."""
        for name, layer in linear_weights(model, self._gradient).items():
            if _may_be_straight(layer, self._gradient[name]):
                watch_inputs(layer, partial(self._recorded, name))

    def _recorded(self, name: str, x: Tensor) -> None:
        self._calls[name] += 1
        if _is_data(x):
            self._inputs[name] = x.clone()

    def settle(self) -> None:
        """After the pass: work out the lines of those that were called once."""
        with torch.no_grad():
            for name, inputs in self._inputs.items():
                weight, gradient = self._start[name], self._gradient[name]
                if self._calls[name] == 1 and inputs.dtype == weight.dtype == gradient.dtype:
                    self._lines[name] = _line(inputs, weight, gradient)

    def go_to(self, distance: float) -> None:
        """Be at this distance from now on."""
        self._distance = distance

    def meet(self, model: nn.Module, comparison: Comparison) -> None:
        """Take the layers' place at another point; see `Shortcut`."""
        self._start_counting()
        for name, layer in linear_weights(model, self.names).items():
            layer.__dict__["forward"] = partial(self._forward, name, layer, comparison)

    def forget(self) -> None:
        """Take no layer's place from now on."""
        self._lines.clear()

    @property
    def is_valid(self) -> bool:
        """Whether each layer ran once since `meet` on the same inputs and was answered once.

        And whether its weight was used nowhere else.
        """
        return all(self._is_plain(name) and not self._uses.get(name) for name in self.names)

    def _forward(
        self, name: str, layer: nn.Linear, comparison: Comparison, input: Tensor
    ) -> Tensor:
        line, bias = self._lines[name], layer.bias
        is_same = not input.requires_grad and torch.equal(input, line.inputs)
        self._calls[name] += 1 if is_same else 2  # not to be trusted
        step = self._distance * self._rates[name]
        output = torch.sub(line.at_start, line.slope, alpha=step) + bias
        hook = partial(self._answered, name, comparison)
        output.register_hook(hook)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return output

    def _answered(self, name: str, comparison: Comparison, signals: Tensor) -> None:
        self._arrivals[name] += 1  # more than once if the loss differentiates by itself
        line = self._lines[name]
        with torch.no_grad():
            products = line.products(signals.detach())
        if float(products[2]) < _LEAST_DIFFERENCE * line.size:
            self._arrivals[name] += 1  # nothing but rounding is left of it
        comparison.add(name, products)


def weights_are_private(model: nn.Module, loss: object) -> bool:
    """Whether each weight is read, and its gradient seen, by its own layer only.

    Known of a loss of ours or torch's on a model of torch's modules and ours, without hooks; other
    code may look at any weight, change what comes back, or differentiate by itself.

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
    """A matrix that does not depend on what is trained, of few samples."""
    is_matrix = type(x) is Tensor and x.layout is torch.strided and x.dim() == 2
    return is_matrix and not x.requires_grad and 4 * len(x) <= x.shape[1]


def _may_be_straight(layer: nn.Linear, gradient: Tensor) -> bool:
    """Whether it is worth it; through the bias the signals come by here in any case."""
    trained = layer.bias is not None and layer.bias.requires_grad
    return trained and gradient.numel() >= WIDE


def _line(inputs: Tensor, weight: Tensor, gradient: Tensor) -> _Line:
    exact = inputs.double()
    turned, size = exact.new_empty(len(gradient), len(inputs)), 0.0
    memory = exact.new_empty(min(_ROWS, len(gradient)), gradient.shape[1])  # to ask anew is slow
    for place in range(0, len(gradient), _ROWS):
        rows = gradient[place : place + _ROWS]
        some = memory[: len(rows)].copy_(rows)
        torch.mm(some, exact.T, out=turned[place : place + _ROWS])
        size += float(torch.linalg.vector_norm(some)) ** 2  # by all threads, unlike a dot
    slope = turned.T.contiguous()
    at_start = inputs @ weight.T
    return _Line(inputs, at_start, slope.to(weight.dtype), slope, exact @ exact.T, size)


def _inner(one: Tensor, other: Tensor) -> Tensor:
    return torch.dot(one.reshape(-1), other.reshape(-1))
