r"""Batch normalization that is cheap to differentiate twice.

PyTorch computes the derivative of its batch normalization's gradient in some thirty passes over
the batch, half of the time of a Hessian product of a convolutional net. The closed form takes nine.
With :math:`\langle\cdot\rangle` the average over the batch, :math:`s` the standard deviation,
:math:`w = \gamma / s`, and the gradient of the layer

.. math::
    d = w \left(g - \langle g \rangle - \hat x \langle g \hat x \rangle\right), \quad
    d_\gamma = \sum g \hat x, \quad d_\beta = \sum g,

cotangents :math:`a, b, c` of these three have, with :math:`G = \langle g \hat x \rangle`,
:math:`A = \langle a \hat x \rangle` and
:math:`V = \langle a g \rangle - \langle a \rangle \langle g \rangle - A G`,

.. math::
    \partial_g &= w \left(a - \langle a \rangle - \hat x A\right) + b \hat x + c, \\
    \partial_\gamma &= m V / s, \\
    \partial_x &= \tfrac1s \left(t - \langle t \rangle - \hat x \langle t \hat x \rangle
        - w V \hat x\right), \quad t = (b - w A) g - w G a.

Reference: santurkar2018, Fact C.1 and Fact C.2; here for any eps and all samples at once.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from normscope.curvature.autograd.recording import detach_if_recording
from normscope.layers.compiled import faster_sums
from normscope.layers.standardize import (
    LocalBatch,
    along_channels,
    channel_axes,
    standardize_by_definition,
)
from normscope.layers.transforms import stands_for_several


def channels_last(tensor: Tensor) -> bool:
    """Return whether a batch of images is in channels_last memory format and not contiguous.

    >>> images = torch.zeros(2, 3, 4, 4)
    >>> channels_last(images), channels_last(images.contiguous(memory_format=torch.channels_last))
    (False, True)
    """
    inner = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return inner and not tensor.is_contiguous()


def exact_statistics(images: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the mean and 1/s of each channel, with s^2 the variance (1/m) plus eps.

    PyTorch sums channels_last images one number after the other, which costs two digits, and
    contiguous ones in a cascade. This function therefore works on a contiguous copy.

    Args:
        images: (batch, channels, *positions).
        eps: added to the variance.

    Returns:
        Two vectors.

    >>> exact_statistics(torch.tensor([[0.0], [4.0]]), 0.0)
    (tensor([2.]), tensor([0.5000]))
    """
    copied = images.contiguous()
    _, mean, inverse = torch.native_batch_norm(copied, None, None, None, None, True, 0.0, eps)
    return mean, inverse


def channel_sums(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums of left * right and of left over each channel, in one pass.

    Where the compiled kernel does not apply, PyTorch's backward kernel of batch normalization
    computes both, with a mean of 0 and a standard deviation of 1.
    """
    compiled = faster_sums(left, right)
    if compiled is not None:
        return compiled
    channels = left.shape[1]
    zeros, ones = left.new_zeros(channels), left.new_ones(channels)
    _, products, total = torch.ops.aten.native_batch_norm_backward(
        left, right, None, None, None, zeros, ones, True, 0.0, [False, True, True]
    )
    return products, total


def is_supported(x: Tensor) -> bool:
    """Return whether `graph_batch_norm` takes this input: float32 or float64 on a CPU."""
    exact = x.dtype in (torch.float32, torch.float64)
    return exact and x.is_cpu and x.dim() > 1 and x.numel() > x.shape[1]


def graph_batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch-normalize by batch statistics, with a gradient that is cheap to differentiate.

    Args:
        x: (batch, channels, ...), such that `is_supported` holds.
        weight: (channels,), or None for 1.
        bias: (channels,), or None for 0.
        eps: added to the variance.

    Returns:
        The output, and the mean and 1/s of each channel, which carry no gradient.

    >>> x = torch.tensor([[0.0], [2.0]], requires_grad=True)
    >>> graph_batch_norm(x, None, None, 3.0)[0].tolist()
    [[-0.5], [0.5]]
    """
    function: Any = _Normalize  # torch declares no types for ``apply``
    output, mean, inverse = function.apply(x, weight, bias, eps)
    return output, mean, inverse


class _Normalize(torch.autograd.Function):
    """(x, weight, bias, eps) -> (output, mean, 1/s)."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Normalize by the native kernel, in the variant that checks weight and bias sizes."""
        if channels_last(x):
            mean, inverse = exact_statistics(x, eps)
            variance = (inverse.pow(-2) - eps).clamp_(min=0)
            output = torch.batch_norm(x, weight, bias, mean, variance, False, 0.0, eps, False)
        else:
            output, mean, inverse, _, _ = torch._batch_norm_impl_index(
                x, weight, bias, None, None, True, 0.0, eps, False
            )
        ctx.save_for_backward(x, weight, mean, inverse)
        ctx.mark_non_differentiable(mean, inverse)
        ctx.set_materialize_grads(False)
        ctx.eps = eps
        return output, mean, inverse

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients by the native kernel, as a function that has its own derivative."""
        if gradients[0] is None:
            return (None,) * 4
        made: tuple[Tensor, ...]
        if stands_for_several(gradients[0]):
            x, weight, *_ = ctx.saved_tensors
            made = _defined_gradient(gradients[0], x, weight, ctx.eps)
        else:
            function: Any = _Gradient
            made = function.apply(gradients[0], *detach_if_recording(ctx.saved_tensors), ctx.eps)
        needed = ctx.needs_input_grad[:3]
        asked = [value if need else None for value, need in zip(made, needed, strict=True)]
        return *asked, None


class _Gradient(torch.autograd.Function):
    """(g, x, weight, mean, 1/s, eps) -> gradients of the input, the weight and the bias."""

    @staticmethod
    def forward(
        ctx: Any,
        g: Tensor,
        x: Tensor,
        weight: Tensor | None,
        mean: Tensor,
        inverse: Tensor,
        eps: float,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return all three gradients in one call."""
        to_input, along, total = _native_gradient(g, x, weight, mean, inverse)
        ctx.save_for_backward(g, x, weight, mean, inverse, along, total)
        ctx.set_materialize_grads(False)
        ctx.eps = eps
        return to_input, along.clone(), total.clone()

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        """Apply the closed form of the module's docstring; by definition if a graph is needed."""
        if torch.is_grad_enabled():
            return _by_definition(ctx, cotangents)
        second = _SecondDerivative(ctx.saved_tensors, cotangents)
        needs_gradient, needs_input, needs_weight, *_ = ctx.needs_input_grad
        return (
            second.to_gradient() if needs_gradient else None,
            second.to_input() if needs_input else None,
            second.to_weight() if needs_weight else None,
            *(None,) * 3,
        )


def _by_definition(ctx: Any, cotangents: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    """Return the same three derivatives, differentiable (slow): for third derivatives."""
    # aliases: g may depend on x, but the derivative in x is taken at fixed g
    tensors: list[Any] = [None if t is None else t.view_as(t) for t in ctx.saved_tensors[:3]]
    g, x, weight = tensors
    made = _defined_gradient(g, x, weight, ctx.eps)
    given = [(out, c) for out, c in zip(made, cotangents, strict=True) if c is not None]
    needed = [place for place in range(3) if ctx.needs_input_grad[place]]
    found = torch.autograd.grad(
        [out for out, _ in given],
        [tensors[place] for place in needed],
        [cotangent for _, cotangent in given],
        create_graph=True,
        materialize_grads=True,
    )
    by_place = dict(zip(needed, found, strict=True))
    return *(by_place.get(place) for place in range(3)), *(None,) * 3


def _defined_gradient(
    g: Tensor, x: Tensor, weight: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of input, weight and bias, in operations that have derivatives."""
    x_hat, _, variance = standardize_by_definition(x, eps, LocalBatch.of(x))
    axes, product = channel_axes(x.dim()), g * x_hat
    centred = g - g.mean(axes, keepdim=True) - x_hat * product.mean(axes, keepdim=True)
    scale = torch.rsqrt(variance + eps)
    if weight is not None:
        scale = scale * along_channels(weight, x)
    return scale * centred, product.sum(axes), g.sum(axes)


class _SecondDerivative:
    """The three formulas and the sums they share.

    Notation: as in the module's docstring; per channel mean_a = <a>, mean_g = <g>, A, G.

    Args:
        saved: g, x, weight, mean, 1/s, sum(g x_hat), sum(g).
        cotangents: a, b, c; None for zero.
    """

    def __init__(self, saved: tuple[Any, ...], cotangents: tuple[Tensor | None, ...]) -> None:
        self.inverse: Tensor
        self.g, self.x, weight, self.mean, self.inverse, along, total = saved
        self.a, self.b, self.c = cotangents
        self.count: int = self.x.numel() // self.x.shape[1]
        self.scale = self.inverse if weight is None else weight * self.inverse
        self.mean_g, self.G = total / self.count, along / self.count
        self.mean_a = self.A = torch.zeros_like(self.mean)
        if self.a is not None:
            self.projected, along_a, total_a = _native_gradient(
                self.a, self.x, weight, self.mean, self.inverse
            )
            self.mean_a, self.A = total_a / self.count, along_a / self.count

    @functools.cached_property
    def varying(self) -> Tensor:
        """V: the covariance of a and g outside the span of 1 and x_hat."""
        if self.a is None:
            return torch.zeros_like(self.mean)
        covariance = channel_sums(self.a, self.g)[0] / self.count
        varying: Tensor = covariance - self.mean_a * self.mean_g - self.A * self.G
        return varying

    def to_gradient(self) -> Tensor:
        """Return the derivative in g."""
        result = torch.zeros_like(self.x) if self.a is None else self.projected
        shift = torch.zeros_like(self.mean) if self.c is None else self.c
        if self.b is not None:
            by_x = self.b * self.inverse
            result.addcmul_(self.x, along_channels(by_x, self.x))
            shift = shift - self.mean * by_x
        elif self.c is None:
            return result
        return result.add_(along_channels(shift, self.x))

    def to_weight(self) -> Tensor:
        """Return the derivative in the weight."""
        return self.varying * self.inverse * self.count

    def to_input(self) -> Tensor:
        """Return the derivative in x."""
        of_g = -self.scale * self.A if self.b is None else self.b - self.scale * self.A
        of_a = -self.scale * self.G
        mean = of_g * self.mean_g + of_a * self.mean_a
        along = of_g * self.G + of_a * self.A + self.scale * self.varying
        inverse, x = self.inverse, self.x
        by_x = along * inverse.square()
        shift = along_channels(self.mean * by_x - mean * inverse, x)
        result = torch.addcmul(shift, x, along_channels(-by_x, x))
        result.addcmul_(self.g, along_channels(of_g * inverse, x))
        if self.a is not None:
            result.addcmul_(self.a, along_channels(of_a * inverse, x))
        return result


def _native_gradient(
    g: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, inverse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradient of the input, sum of g x_hat and sum of g: Fact C.1."""
    gradients: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.native_batch_norm_backward(
        g, x, weight, None, None, mean, inverse, True, 0.0, [True, True, True]
    )
    return gradients
