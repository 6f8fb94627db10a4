r"""Normalization by constant statistics that is cheap to differentiate twice.

Batch normalization in evaluation mode is an affine map of each channel. PyTorch differentiates its
gradient in many passes over the batch, a third of the time of a product in evaluation mode. With
:math:`w = \gamma / s` the gradient of the layer is

.. math::
    d = w g, \quad d_\gamma = \sum g \hat x, \quad d_\beta = \sum g,

and cotangents :math:`a, b, c` of these three have

.. math::
    \partial_g = w a + b \hat x + c, \quad \partial_x = b g / s, \quad
    \partial_\gamma = \tfrac1s \sum a g.

Reference: ioffe2015, Alg. 2, step 11. Notation: s = sqrt(variance + eps), x_hat = (x - mean) / s.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from normscope.curvature.autograd.batch_norm import channel_sums
from normscope.curvature.autograd.recording import detach_if_recording
from normscope.layers.standardize import along_channels, channel_axes
from normscope.layers.transforms import stands_for_several


def constant_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    eps: float,
) -> Tensor:
    """Normalize by a given mean and variance, with a gradient that is cheap to differentiate.

    Args:
        x: (batch, channels, ...), in single or double precision on a CPU.
        weight: (channels,), or None for 1.
        bias: (channels,), or None for 0.
        mean: (channels,), a constant, as is the next.
        variance: (channels,).
        eps: added to the variance.

    Returns:
        Like x.

    >>> x = torch.tensor([[0.0], [2.0]], requires_grad=True)
    >>> constant_norm(x, None, None, torch.ones(1), torch.ones(1), 3.0).tolist()
    [[-0.5], [0.5]]
    """
    function: Any = _ByConstants  # torch declares no types for ``apply``
    # running statistics are buffers: later updates must not reach the backward pass
    output: Tensor = function.apply(x, weight, bias, mean.clone(), variance.clone(), eps)
    return output


class _ByConstants(torch.autograd.Function):
    """(x, weight, bias, mean, variance, eps) -> output."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        variance: Tensor,
        eps: float,
    ) -> Tensor:
        """Normalize by the native kernel."""
        ctx.save_for_backward(x, weight, mean, variance)
        ctx.eps = eps
        return torch.batch_norm(x, weight, bias, mean, variance, False, 0.0, eps, False)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients by the native kernel, as a function that has its own derivative."""
        wanted = tuple(ctx.needs_input_grad[:3])
        if stands_for_several(gradients[0]):
            x, weight, mean, variance = ctx.saved_tensors
            made = _defined_gradient(gradients[0], x, weight, mean, variance, ctx.eps)
            asked = [part if want else None for part, want in zip(made, wanted, strict=True)]
            return *asked, None, None, None
        function: Any = _GradientByConstants
        made = function.apply(
            gradients[0], *detach_if_recording(ctx.saved_tensors), ctx.eps, wanted
        )
        return *made, None, None, None


class _GradientByConstants(torch.autograd.Function):
    """(g, x, weight, mean, variance, eps, wanted) -> gradients of input, weight and bias."""

    @staticmethod
    def forward(
        ctx: Any,
        g: Tensor,
        x: Tensor,
        weight: Tensor | None,
        mean: Tensor,
        variance: Tensor,
        eps: float,
        wanted: tuple[bool, bool, bool],
    ) -> tuple[Tensor | None, ...]:
        """Return all wanted gradients in one call."""
        ctx.save_for_backward(g, x, weight, mean, variance)
        ctx.set_materialize_grads(False)
        ctx.eps = eps
        made: tuple[Tensor | None, ...] = torch.ops.aten.native_batch_norm_backward(
            g, x, weight, mean, variance, None, None, False, eps, wanted
        )
        return tuple(part if want else None for part, want in zip(made, wanted, strict=True))

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        """Apply the formulas of the module's docstring, in operations that have derivatives too."""
        g, x, weight, mean, variance = ctx.saved_tensors
        a, b, c = cotangents
        inverse = torch.rsqrt(variance + ctx.eps)
        scale = inverse if weight is None else weight * inverse
        needs_gradient, needs_input, needs_weight, *_ = ctx.needs_input_grad
        to_gradient = to_input = to_weight = None
        if needs_gradient:
            to_gradient = _output_tangent(x, mean, inverse, scale, (a, b, c))
        if needs_input and b is not None:
            to_input = g * along_channels(b * inverse, x)
        if needs_weight and a is not None:
            to_weight = inverse * _summed_product(a, g)
        return to_gradient, to_input, to_weight, *(None,) * 4


def _defined_gradient(
    g: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, variance: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the three gradients, in operations that have derivatives and that vmap can batch."""
    inverse = torch.rsqrt(variance + eps)
    x_hat = (x - along_channels(mean, x)) * along_channels(inverse, x)
    scale = inverse if weight is None else weight * inverse
    axes = channel_axes(x.dim())
    return g * along_channels(scale, x), (g * x_hat).sum(axes), g.sum(axes)


def _output_tangent(
    x: Tensor,
    mean: Tensor,
    inverse: Tensor,
    scale: Tensor,
    cotangents: tuple[Tensor | None, Tensor | None, Tensor | None],
) -> Tensor:
    """Return the output's tangent as input, weight and bias move by the cotangents: two passes."""
    a, b, c = cotangents
    shift = torch.zeros_like(mean) if c is None else c
    if b is None:
        moved = along_channels(shift, x)
    else:
        by_x = b * inverse
        shift = along_channels(shift - mean * by_x, x)
        moved = torch.addcmul(shift, x, along_channels(by_x, x))
    if a is None:
        return moved if b is not None else moved.expand_as(x).clone()
    return torch.addcmul(moved, a, along_channels(scale, x))


def _summed_product(left: Tensor, right: Tensor) -> Tensor:
    """Return the sum of left * right over each channel, in one pass if no graph is needed."""
    if torch.is_grad_enabled():
        return (left * right).sum(channel_axes(left.dim()))
    return channel_sums(left, right)[0]
