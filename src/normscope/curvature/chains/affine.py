"""Derivatives of linear layers and convolutions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from normscope.curvature.autograd.batch_norm import channels_last
from normscope.curvature.autograd.convolution import ConvolutionGeometry, Gradients
from normscope.curvature.chains.links import (
    Link,
    Motion,
    OuterProduct,
    ParameterCotangent,
    WeightBias,
)

_BLOCKS = 4  # of rows, in a product of a matrix and its own transpose
_SMALLEST_BLOCK = 128  # rows; smaller products run far below the speed of the processor


class LinearLink(Link):
    r"""A linear layer, y = x W^T + b.

    In J J^T u a cotangent's gradient is multiplied by the inputs again. The products may be taken
    in another order, without the gradient itself:

    .. math:: X (\delta^\top X)^\top + 1 (1^\top \delta) = (X X^\top + 1 1^\top)\, \delta

    The matrix in brackets is computed once if that saves work over two products.

    Notation: X = inputs, one row each; delta = cotangents of the output; W = weight.

    Args:
        inputs: (*, fan_in).
        weight: (fan_out, fan_in).
        names: of weight and bias; None for one that is not differentiated by.
    """

    def __init__(
        self, inputs: Tensor, weight: Tensor, names: tuple[str | None, str | None]
    ) -> None:
        self.names = names
        self._shape = inputs.shape
        self._inputs = inputs.reshape(-1, inputs.shape[-1])
        self._weight = weight
        self._kernel: Tensor | None = None
        # results of earlier products, overwritten by the next: allocating costs more than filling
        self._memory: dict[str, Tensor] = {}

    def vjp(self, delta: Tensor, to_input: bool) -> tuple[Tensor | None, ParameterCotangent]:
        """Return the cotangents of the input and the parameters."""
        below = self.input_vjp(delta) if to_input else None
        outer = OuterProduct(delta.reshape(-1, len(self._weight)), self._inputs)
        if self.names[0] is not None and self._kernel_pays():
            return below, outer
        return below, self.gradients(outer)

    def input_vjp(self, delta: Tensor) -> Tensor:
        """Return the cotangent of the input."""
        rows = delta.reshape(-1, len(self._weight))
        return self._product("below", rows, self._weight).view(self._shape)

    def vjp_derivative(self, at: Motion, to_input: bool) -> tuple[Tensor | None, WeightBias]:
        """Return the derivative of `vjp` by the product rule."""
        moved, delta, tangent, (by_weight, _) = at
        rows, first = (part.reshape(-1, len(self._weight)) for part in (moved, delta))
        below = weight = None
        if to_input:
            below = self._product("below", rows, self._weight)
            if by_weight is not None:
                below.addmm_(first, by_weight)
            below = below.view(self._shape)
        if self.names[0] is not None:
            weight = self._product("weight", rows.T, self._inputs)
            if tangent is not None:
                weight.addmm_(first.T, tangent.reshape(-1, self._shape[-1]))
        return below, (weight, None if self.names[1] is None else rows.sum(0))

    def jvp(self, tangent: Tensor | None, direction: ParameterCotangent) -> Tensor:
        """Return the tangent of the output."""
        rows = None
        if tangent is not None:
            rows = self._product("above", tangent.reshape(-1, self._shape[-1]), self._weight.T)
        if isinstance(direction, OuterProduct) and self._kernel_is_cheaper(direction):
            rows = self._plus_product(rows, self._kernel_with(direction), direction.delta)
            return rows.view(*self._shape[:-1], -1)
        weight, bias = self.gradients(direction)
        if weight is not None:
            rows = self._plus_product(rows, self._inputs, weight.T)
        if rows is None:
            rows = self._inputs.new_zeros(len(self._inputs), len(self._weight))
        if bias is not None:
            rows = rows.add_(bias)
        return rows.view(*self._shape[:-1], -1)

    def gradients(self, cotangent: ParameterCotangent) -> WeightBias:
        """Return the gradients of weight and bias, multiplied out."""
        if not isinstance(cotangent, OuterProduct):
            return cotangent
        weight, bias = self.names
        return (
            None if weight is None else cotangent.delta.T @ cotangent.inputs,
            None if bias is None else cotangent.delta.sum(0),
        )

    def inner_products(self, cotangents: Sequence[ParameterCotangent]) -> Tensor:
        """Return the inner products of several parameter cotangents, float64, (count, count)."""
        outer = [each for each in cotangents if isinstance(each, OuterProduct)]
        if len(outer) < len(cotangents):
            return super().inner_products(cotangents)
        deltas = torch.stack([each.delta for each in outer])
        images = self._kernel_with(outer[0]) @ deltas
        return (deltas.flatten(1) @ images.flatten(1).T).double().cpu()

    def _kernel_pays(self) -> bool:
        """Return whether computing X X^T + 1 1^T costs less than it saves in two products."""
        rows, (fan_out, fan_in) = len(self._inputs), self._weight.shape
        return rows * fan_in <= 2 * fan_out * (2 * fan_in - rows)

    def _kernel_is_cheaper(self, outer: OuterProduct) -> bool:
        """Return whether (X X^T) delta is the cheaper order of the two products."""
        if outer.inputs is self._inputs:
            return True  # `vjp` has decided it
        rows, others = len(self._inputs), len(outer.inputs)
        fan_out, fan_in = self._weight.shape
        return rows * others * (fan_in + fan_out) < (rows + others) * fan_in * fan_out

    def _kernel_with(self, outer: OuterProduct) -> Tensor:
        """Return X X^T + 1 1^T, where the second X are the inputs of the outer product."""
        if outer.inputs is not self._inputs:
            return self._plus_bias(self._inputs @ outer.inputs.T)
        if self._kernel is None:
            self._kernel = self._plus_bias(_times_own_transpose(self._inputs))
        return self._kernel

    def _plus_bias(self, kernel: Tensor) -> Tensor:
        return kernel if self.names[1] is None else kernel.add_(1)

    def _product(self, name: str, left: Tensor, right: Tensor) -> Tensor:
        self._memory[name] = torch.mm(left, right, out=self._memory.get(name))
        return self._memory[name]

    def _plus_product(self, rows: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
        return self._product("above", left, right) if rows is None else rows.addmm_(left, right)


def _times_own_transpose(rows: Tensor) -> Tensor:
    """Return a matrix times its transpose; one of each symmetric pair of blocks is computed."""
    count = len(rows)
    size = -(-count // _BLOCKS)
    if size < _SMALLEST_BLOCK:
        return rows @ rows.T
    product = rows.new_empty(count, count)
    for start in range(0, count, size):
        stop = min(start + size, count)
        panel = rows[start:stop] @ rows[start:].T
        product[start:stop, start:] = panel
        product[stop:, start:stop] = panel[:, stop - start :].T
    return product


class ConvolutionLink(Link):
    """A convolution in one, two or three dimensions, padded by zeros.

    Args:
        inputs: (batch, channels, *positions).
        weight: the kernels.
        names: of weight and bias; None for one that is not differentiated by.
        geometry: stride, padding, dilation and groups.
    """

    def __init__(
        self,
        inputs: Tensor,
        weight: Tensor,
        names: tuple[str | None, str | None],
        geometry: ConvolutionGeometry,
    ) -> None:
        self.names = names
        self._format = torch.channels_last if channels_last(inputs) else torch.contiguous_format
        self._inputs = inputs.contiguous(memory_format=self._format)
        self._weight = weight.contiguous(memory_format=self._format)
        self._geometry = geometry

    def output(self, bias: Tensor | None) -> Tensor:
        """Return the convolution of the inputs."""
        return self._geometry.convolution(self._inputs, self._weight, bias)

    def vjp(self, delta: Tensor, to_input: bool) -> tuple[Tensor | None, ParameterCotangent]:
        """Return the cotangents of the input and the parameters."""
        weight, bias = (name is not None for name in self.names)
        wanted = to_input, weight, bias
        below, *gradients = self._gradient(delta, self._inputs, self._weight, wanted)
        return below, (gradients[0], gradients[1])

    def input_vjp(self, delta: Tensor) -> Tensor:
        """Return the cotangent of the input."""
        below, _, _ = self._gradient(delta, self._inputs, self._weight, (True, False, False))
        assert below is not None
        return below

    def vjp_derivative(self, at: Motion, to_input: bool) -> tuple[Tensor | None, WeightBias]:
        """Return the derivative of `vjp` by the product rule."""
        weight, bias = (name is not None for name in self.names)
        moved, delta, tangent, (by_weight, _) = at
        wanted = to_input, weight, bias
        below, *gradients = self._gradient(moved, self._inputs, self._weight, wanted)
        # a tensor that does not move is a placeholder: the gradients wanted do not depend on it
        image = self._inputs if tangent is None else tangent
        kernels = self._weight if by_weight is None else by_weight
        wanted = to_input and by_weight is not None, weight and tangent is not None, False
        more_below, more_weight, _ = self._gradient(delta, image, kernels, wanted)
        return _sum(below, more_below), (_sum(gradients[0], more_weight), gradients[1])

    def jvp(self, tangent: Tensor | None, direction: ParameterCotangent) -> Tensor:
        """Return the tangent of the output."""
        weight, bias = self.gradients(direction)
        parts = []
        if weight is not None or tangent is None:
            kernels = torch.zeros_like(self._weight) if weight is None else weight
            parts.append(self._geometry.convolution(self._inputs, kernels, bias))
            bias = None
        if tangent is not None:
            parts.append(self._geometry.convolution(tangent, self._weight, bias))
        return parts[0] if len(parts) == 1 else parts[0].add_(parts[1])

    def _gradient(
        self, delta: Tensor, inputs: Tensor, weight: Tensor, wanted: tuple[bool, bool, bool]
    ) -> Gradients:
        """Return the cotangents of input, weight and bias; None where not wanted."""
        if not any(wanted):
            return None, None, None
        delta, inputs, weight = (
            part.contiguous(memory_format=self._format) for part in (delta, inputs, weight)
        )
        return self._geometry.gradient(delta, inputs, weight, wanted)


def _sum(total: Tensor | None, part: Tensor | None) -> Tensor | None:
    if total is None or part is None:
        return total if part is None else part
    return total.add_(part)
