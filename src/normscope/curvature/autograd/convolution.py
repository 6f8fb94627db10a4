r"""Convolution that is cheap to differentiate twice.

The gradient of a convolution :math:`y = x * W` takes the gradient g of y to :math:`(d, D)`, those
of x and W. It is linear in g, x and W, so that cotangents a, B of d, D have

.. math::
    \partial_g = a * W + x * B, \qquad
    (\partial_x, \partial_W) = \text{the gradient of } a * B \text{ at } g.

This costs three convolutions in the kernels that training uses. PyTorch writes the last two as
convolutions with samples and channels exchanged, whose kernels are as large as images; with a
stride these are slow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normscope.curvature.autograd.recording import detach_if_recording
from normscope.layers.transforms import stands_for_several

#: of input, weight and bias; None where not wanted
Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


@dataclass(frozen=True)
class ConvolutionGeometry:
    """Stride, padding, dilation and groups of a convolution, with its forward and backward kernel.

    Args:
        stride: of each dimension, as the next two.
        padding: zeros on either side.
        dilation: distance between the entries of a kernel.
        groups: of channels.
    """

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def convolution(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return the convolution."""
        return torch.convolution(x, weight, bias, *self._options)

    def gradient(
        self, g: Tensor, x: Tensor, weight: Tensor, wanted: tuple[bool, bool, bool]
    ) -> Gradients:
        """Return the gradients of input, weight and bias for g of the output; None if not wanted.

        Input and weight may be any tensors of the right shape: one whose values are not needed for
        the wanted gradients may be a placeholder.
        """
        found: Gradients = torch.ops.aten.convolution_backward(
            g, x, weight, [len(weight)], *self._options, wanted
        )
        return found

    @property
    def _options(self) -> tuple[Any, ...]:
        transposed, output_padding = False, (0,) * len(self.stride)
        return self.stride, self.padding, self.dilation, transposed, output_padding, self.groups


def graph_convolution(
    dimensions: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] | str = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
) -> Tensor | None:
    """Convolve, with a gradient that is cheap to differentiate.

    Args:
        dimensions: 1, 2 or 3.
        input: this and the other arguments as for ``torch.conv1d``, ``conv2d`` and ``conv3d``.
        weight: the kernels.
        bias: one for each output channel, or None.
        stride: of the kernel.
        padding: of the input.
        dilation: of the kernel.
        groups: of channels.

    Returns:
        The output; None where only PyTorch's own function applies: a single sample, padding by
        name, a device other than the CPU.

    >>> x, weight = torch.ones(1, 1, 3), torch.ones(1, 1, 2)
    >>> graph_convolution(1, x, weight).tolist()
    [[[2.0, 2.0]]]
    """
    batched = input.dim() == dimensions + 2
    if isinstance(padding, str) or not batched or not input.is_cpu or input.dtype != weight.dtype:
        return None
    geometry = ConvolutionGeometry(
        _repeated(stride, dimensions),
        _repeated(padding, dimensions),
        _repeated(dilation, dimensions),
        groups,
    )
    function: Any = _Convolve  # torch declares no types for ``apply``
    output: Tensor = function.apply(input, weight, bias, geometry)
    return output


def _repeated(value: int | tuple[int, ...], times: int) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * times if len(values) == 1 else values


class _Convolve(torch.autograd.Function):
    """(x, weight, bias, geometry) -> output."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: ConvolutionGeometry
    ) -> Tensor:
        """Convolve by PyTorch's kernel."""
        ctx.save_for_backward(x, weight)
        ctx.geometry = geometry
        return geometry.convolution(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients by PyTorch's kernel, as a function that has its own derivative."""
        wanted = tuple(ctx.needs_input_grad[:3])
        if stands_for_several(gradients[0]):
            return *ctx.geometry.gradient(gradients[0], *ctx.saved_tensors, wanted), None
        function: Any = _Gradient
        saved = detach_if_recording(ctx.saved_tensors)
        return *function.apply(gradients[0], *saved, ctx.geometry, wanted), None


class _Gradient(torch.autograd.Function):
    """(g, x, weight, geometry, wanted) -> gradients of the input, the weight and the bias."""

    @staticmethod
    def forward(
        ctx: Any,
        g: Tensor,
        x: Tensor,
        weight: Tensor,
        geometry: ConvolutionGeometry,
        wanted: tuple[bool, bool, bool],
    ) -> Gradients:
        """Return all wanted gradients in one call."""
        ctx.save_for_backward(g, x, weight)
        ctx.geometry = geometry
        ctx.set_materialize_grads(False)
        return geometry.gradient(g, x, weight, wanted)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        """Apply the formulas of the module's docstring, in operations that have derivatives too."""
        g, x, weight = ctx.saved_tensors
        geometry, (a, b, c) = ctx.geometry, cotangents
        needs_gradient, needs_input, needs_weight, *_ = ctx.needs_input_grad
        to_gradient = _output_tangent(geometry, g, x, weight, (a, b, c)) if needs_gradient else None
        to_input = to_weight = None
        wanted = (needs_input and b is not None, needs_weight and a is not None, False)
        if any(wanted):
            image, kernel = (x if a is None else a), (weight if b is None else b)  # placeholders
            to_input, to_weight, _ = geometry.gradient(g, image, kernel, wanted)
        return to_gradient, to_input, to_weight, None, None


def _output_tangent(
    geometry: ConvolutionGeometry, g: Tensor, x: Tensor, weight: Tensor, cotangents: Gradients
) -> Tensor:
    """Return the tangent of the output when input, weight and bias move by the cotangents."""
    a, b, c = cotangents
    moved = None if a is None else geometry.convolution(a, weight, c)
    if b is not None:
        by_weight = geometry.convolution(x, b, c if moved is None else None)
        moved = by_weight if moved is None else moved.add_(by_weight)
    if moved is not None:
        return moved
    result = torch.zeros_like(g)
    return result if c is None else result.add_(c.view(-1, *(1,) * (g.dim() - 2)))
